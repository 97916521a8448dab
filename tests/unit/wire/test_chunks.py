"""Chunks pushed without a session: they add up, and one that is lost leaves nothing mixed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest
import torch

from hotswap.controller import Controller
from hotswap.errors import IllegalCommand, UpdateFailed, UpdateRejected
from hotswap.state import Command, Facts, State, Weights
from hotswap.testing.module_engine import ModuleEngine
from hotswap.testing.tiny_modules import TinyModel, tiny_state, tiny_target
from hotswap.types import LoadMode, PauseMode, Scope
from hotswap.wire import (
    FLATTENED,
    PUSHED,
    PushStrategy,
    Received,
    flattened_bucket,
    push_update,
)
from tests.unit.wire.test_push import Server

STATE = tiny_state(4)
NAMES = list(STATE)
BAD = {"embed.weight": torch.zeros(3)}


def chunk(*numbers: int) -> dict[str, torch.Tensor]:
    return {NAMES[number]: STATE[NAMES[number]] for number in numbers}


async def paused() -> Server:
    server = Server(TinyModel())
    await server.controller.pause(PauseMode.ABORT)
    return server


def state_of(server: Server) -> State:
    return server.controller.machine.state


async def test_chunks_are_counted_until_they_cover_everything() -> None:
    server = await paused()
    coverage = server.controller.coverage
    assert (coverage.covered, coverage.of, coverage.begun) == (0, len(NAMES), False)
    for number in range(len(NAMES) - 1):
        await server.push(chunk(number))
        assert coverage.covered == number + 1
    assert repr(coverage) == f"<Coverage {len(NAMES) - 1} of {len(NAMES)}>"
    await server.push(chunk(len(NAMES) - 1))
    assert (coverage.covered, coverage.begun) == (0, False)
    assert state_of(server) is State.PAUSED


async def test_the_same_chunk_twice_counts_once() -> None:
    server = await paused()
    for _ in range(2):
        await server.push(chunk(0, 1))
    assert server.controller.coverage.covered == 2


async def send(server: Server, tensors: dict[str, torch.Tensor], *, times: int = 1) -> None:
    """A chunk whose reply was lost, and which was sent again therefore."""
    with flattened_bucket(list(tensors.items())) as text:
        for _ in range(times):
            received = Received.read([text], load_format=FLATTENED)
            try:
                await server.controller.update(push_update(received))
            finally:
                received.release()


async def test_the_last_chunk_twice_begins_no_push() -> None:
    """verl sends again what was not answered, and tells no version."""
    server = await paused()
    coverage = server.controller.coverage
    for number in range(len(NAMES)):
        await send(server, chunk(number), times=2)
    assert (coverage.covered, coverage.begun) == (0, False)
    # The next push: were the last chunk counted for it, it would be whole one chunk too early.
    for number in range(len(NAMES) - 1):
        await send(server, chunk(number))
    assert (coverage.covered, coverage.begun) == (len(NAMES) - 1, True)
    with pytest.raises(UpdateRejected):
        await send(server, BAD)
    assert state_of(server) is State.INVALID


async def test_another_chunk_of_the_same_names_begins_one() -> None:
    server = await paused()
    for number in (*range(len(NAMES)), len(NAMES) - 1):
        await send(server, chunk(number))
    assert server.controller.coverage.covered == 1


async def test_after_a_full_update_a_chunk_that_comes_again_begins_one() -> None:
    server = await paused()
    await send(server, chunk(*range(len(NAMES) - 1)))
    with flattened_bucket(list(chunk(len(NAMES) - 1).items())) as text:
        for scope in (None, Scope.FULL, None):
            if scope is Scope.FULL:
                await server.push(STATE, scope=scope)
            else:
                received = Received.read([text], load_format=FLATTENED)
                await server.controller.update(push_update(received))
    assert server.controller.coverage.covered == 1


async def test_a_bad_first_chunk_changes_nothing() -> None:
    server = await paused()
    with pytest.raises(UpdateRejected):
        await server.push(BAD)
    assert server.controller.machine.facts.weights is Weights.WHOLE
    await server.controller.resume()
    assert state_of(server) is State.SERVING


async def test_a_bad_chunk_after_a_good_one_leaves_the_weights_not_whole() -> None:
    server = await paused()
    await server.push(chunk(0), version="2")
    epoch = server.controller.stamp.epoch
    with pytest.raises(UpdateRejected, match="wrong shape"):
        await server.push(BAD, version="3")
    assert state_of(server) is State.INVALID
    assert "weights_not_whole" in server.controller.not_ready_reasons()
    assert (server.controller.stamp.version, server.controller.stamp.epoch) == ("2", epoch)
    with pytest.raises(IllegalCommand, match="send a full update first"):
        await server.controller.resume()


async def test_later_chunks_make_them_whole_again_and_earlier_ones_do_not_count() -> None:
    server = await paused()
    await server.push(chunk(0))
    with pytest.raises(UpdateRejected):
        await server.push(BAD)
    assert server.controller.coverage.covered == 0
    for number in range(1, len(NAMES)):
        await server.push(chunk(number))
        assert state_of(server) is State.INVALID
    await server.push(chunk(0))
    assert state_of(server) is State.PAUSED
    await server.controller.resume()
    assert state_of(server) is State.SERVING


async def test_a_full_push_makes_them_whole_at_once() -> None:
    server = await paused()
    await server.push(chunk(0))
    with pytest.raises(UpdateRejected):
        await server.push(BAD)
    await server.push(STATE, scope=Scope.FULL)
    assert state_of(server) is State.PAUSED
    assert not server.controller.coverage.begun


async def test_a_serving_server_stops_when_a_push_breaks_off() -> None:
    server = Server(TinyModel())
    await server.push(chunk(0))
    assert state_of(server) is State.SERVING
    with pytest.raises(UpdateRejected):
        await server.push(BAD)
    assert state_of(server) is State.INVALID


async def test_a_chunk_that_tears_the_weights_begins_the_count_again() -> None:
    failing = {"now": False}
    server = Server(TinyModel(), fails=lambda at: failing["now"] and at is not None)
    await server.controller.pause(PauseMode.ABORT)
    await server.push(chunk(0))
    failing["now"] = True
    with pytest.raises(UpdateFailed):
        await server.push(chunk(1), mode=LoadMode.DIRECT)
    failing["now"] = False
    assert server.controller.coverage.covered == 0
    assert state_of(server) is State.INVALID
    await server.push({name: STATE[name] for name in NAMES})
    assert state_of(server) is State.PAUSED


async def test_weights_that_were_never_loaded_are_loaded_by_chunks() -> None:
    engine = ModuleEngine(tiny_target(TinyModel()))
    server = Server(TinyModel())
    server.engine = engine
    server.controller = Controller(
        engine, strategies={PUSHED: PushStrategy()}, facts=Facts(weights=Weights.NEVER_LOADED)
    )
    half = len(NAMES) // 2
    await server.push(chunk(*range(half)))
    assert server.controller.machine.facts.weights is Weights.NEVER_LOADED
    await server.push(chunk(*range(half, len(NAMES))))
    assert state_of(server) is State.SERVING


async def test_a_rejection_is_told_though_other_commands_go_on_for_too_long() -> None:
    server = await paused()
    server.controller = Controller(
        server.engine,
        strategies={PUSHED: PushStrategy()},
        facts=Facts(gate=PauseMode.ABORT),
        queue_wait_s=0.05,
    )
    await server.push(chunk(0))
    with await server.controller.queue.enter(Command.PAUSE), pytest.raises(UpdateRejected):
        await server.push(BAD)
    assert server.controller.coverage.covered == 1


async def test_a_push_that_has_ended_meanwhile_is_not_given_up() -> None:
    server = await paused()
    await server.push(chunk(0))
    entry = await server.controller.queue.enter(Command.PAUSE)
    async with anyio.create_task_group() as group:

        async def bad() -> None:
            with pytest.raises(UpdateRejected):
                await server.push(BAD)

        group.start_soon(bad)
        while not server.controller.queue.waiting:  # the bad chunk's turn to give the push up
            await anyio.lowlevel.checkpoint()
        server.controller.coverage.clear()  # as a full update ahead of it does
        entry.__exit__(None, None, None)
    assert state_of(server) is State.PAUSED


class ResettingEngine(ModuleEngine):
    """Stands in the middle of a reset until it may go on, and fails if it shall."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__(tiny_target(TinyModel()))
        self.resetting = anyio.Event()
        self.may_end = anyio.Event()
        self._reset_fails = fails

    async def reset_weights(self, skipped: Sequence[str]) -> tuple[str, ...]:
        names = self.target.reset(skipped)
        self.resetting.set()
        await self.may_end.wait()
        if self._reset_fails:
            raise RuntimeError("no more")
        return names


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_chunks_from_before_a_reset_do_not_count(fails: bool, cancelled: bool) -> None:
    """However the reset ended, and whoever still waited for it: noise is over them."""
    engine = ResettingEngine(fails=fails)
    server = Server(TinyModel())
    server.engine = engine
    server.controller = Controller(engine, strategies={PUSHED: PushStrategy()})
    await server.controller.pause(PauseMode.ABORT)
    await server.push(chunk(*range(1, len(NAMES))))

    async def reset() -> None:
        with suppress(RuntimeError):
            await server.controller.reset()

    async with anyio.create_task_group() as group:
        group.start_soon(reset)
        await engine.resetting.wait()
        if cancelled:
            group.cancel_scope.cancel()
        engine.may_end.set()
    assert not server.controller.coverage.begun
    await server.push(chunk(0))
    assert state_of(server) is State.INVALID
