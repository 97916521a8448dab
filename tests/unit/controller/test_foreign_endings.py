"""Strategies, hooks and engines that end with what is no ``Exception``: a command that failed,
typed, and never a server that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from hotswap.attempt import UpdateNews
from hotswap.controller import Controller
from hotswap.errors import HotswapError, UpdateFailed, UpdateRejected
from hotswap.seams import LoadStrategy, Stage
from hotswap.state import Change, Facts, State, Weights
from hotswap.testing.endings import ENDINGS
from hotswap.testing.fakes import FakeEngine, FakeStage, Steps, fake_weights
from hotswap.testing.rig import Rig, make_rig, update_from
from hotswap.types import LoadMode, PauseMode, Placement, Update

STAGED, DIRECT = LoadMode.STAGED, LoadMode.DIRECT
# asyncio ends its loop at the first, and takes the second for its own. All: test_foreign.py.
TYPICAL = ("SystemExit", "CancelledError", "StopEverything")


async def serving_rig() -> Rig:
    """Checkpoint A, version "1"."""
    rig = make_rig()
    await rig.controller.start()
    await rig.controller.update(update_from("A", version="1"))
    rig.engine.calls.clear()
    return rig


async def assert_goes_on(rig: Rig, *, weights: set[float], state: State = State.SERVING) -> None:
    controller = rig.controller
    assert controller.machine.state is state
    assert rig.engine.values() == weights
    assert controller.stamp.version == "1"
    rig.assert_rested()
    assert (await controller.update(update_from("B", version="2"))).stamp.version == "2"
    assert rig.engine.values() == {2.0}
    assert controller.machine.state is State.SERVING


@pytest.mark.parametrize("ending", TYPICAL)
@pytest.mark.parametrize("mode", [STAGED, DIRECT])
@pytest.mark.parametrize("step", ["open", "plan", "bucket", "pause"])
async def test_before_the_first_write_an_update_is_rejected(
    step: str, mode: LoadMode, ending: str
) -> None:
    rig = await serving_rig()
    rig.steps.fail(step, ENDINGS[ending]())
    with pytest.raises(UpdateRejected, match=ending):
        await rig.controller.update(update_from("B", version="2", mode=mode))
    await assert_goes_on(rig, weights={1.0})


@pytest.mark.parametrize("ending", TYPICAL)
async def test_leaving_a_stage_that_was_read_is_a_rejection(ending: str) -> None:
    """It is left before the pause."""
    rig = await serving_rig()
    rig.steps.fail("close", ENDINGS[ending]())
    with pytest.raises(UpdateRejected, match=f"releasing 'B'.*{ending}"):
        await rig.controller.update(update_from("B", version="2"))
    await assert_goes_on(rig, weights={1.0})


@pytest.mark.parametrize("ending", TYPICAL)
async def test_leaving_a_stage_after_the_commit_changes_nothing_about_it(ending: str) -> None:
    rig = await serving_rig()
    rig.steps.fail("close", ENDINGS[ending]())
    report = await rig.controller.update(update_from("B", version="2", mode=DIRECT))
    assert report.stamp.version == "2"
    assert rig.engine.values() == {2.0}
    rig.assert_rested()


@pytest.mark.parametrize("ending", TYPICAL)
async def test_leaving_a_stage_after_a_failure_hides_no_failure(ending: str) -> None:
    rig = await serving_rig()
    rig.steps.fail("bucket", OSError("unplugged"), at=1)
    rig.steps.fail("close", ENDINGS[ending]())
    with pytest.raises(UpdateRejected, match="unplugged"):
        await rig.controller.update(update_from("B", version="2"))
    await assert_goes_on(rig, weights={1.0})


@pytest.mark.parametrize("ending", TYPICAL)
@pytest.mark.parametrize("step", ["write", "tensor", "commit"])
async def test_a_staged_commit_rolls_forward(step: str, ending: str) -> None:
    rig = await serving_rig()
    rig.steps.fail(step, ENDINGS[ending]())
    assert (await rig.controller.update(update_from("B", version="2"))).stamp.version == "2"
    assert rig.engine.values() == {2.0}
    assert rig.controller.counters.updates["fake", "rolled_forward"] == 1
    rig.assert_rested()


@pytest.mark.parametrize("ending", TYPICAL)
@pytest.mark.parametrize("step", ["write", "tensor", "commit"])
async def test_one_that_cannot_be_rolled_forward_has_failed(step: str, ending: str) -> None:
    rig = await serving_rig()
    rig.steps.fail(step, ENDINGS[ending]())
    with pytest.raises(UpdateFailed, match=ending):
        await rig.controller.update(update_from("B", version="2", mode=DIRECT))
    assert rig.controller.machine.facts == Facts(weights=Weights.TORN)
    assert rig.controller.machine.state is State.INVALID
    rig.steps.forget_failures()
    await rig.controller.update(update_from("B", version="2"))
    assert rig.engine.values() == {2.0}


@pytest.mark.parametrize("ending", TYPICAL)
async def test_a_flush_after_the_commit_that_ends_so_is_a_failed_update(ending: str) -> None:
    rig = await serving_rig()
    rig.steps.fail("flush", ENDINGS[ending]())
    with pytest.raises(UpdateFailed, match=f"flushing the cache failed with .*{ending}"):
        await rig.controller.update(update_from("B", version="2"))
    assert rig.controller.machine.state is State.INVALID


@pytest.mark.parametrize("ending", TYPICAL)
@pytest.mark.parametrize("command", ["pause", "resume", "flush", "relabel", "reset", "sleep"])
async def test_a_command_whose_engine_ends_so_has_failed(command: str, ending: str) -> None:
    rig = await serving_rig()
    controller = rig.controller
    if command == "resume":
        await controller.pause(PauseMode.IN_PLACE)
    calls: dict[str, tuple[str, Callable[[], Awaitable[object]]]] = {
        "pause": ("pause", lambda: controller.pause(PauseMode.WAIT)),
        "resume": ("resume", controller.resume),
        "flush": ("flush", controller.flush),
        "relabel": ("commit", lambda: controller.relabel("other")),
        "reset": ("reset", controller.reset),
        "sleep": ("sleep", lambda: controller.memory.sleep(frozenset({"kv_cache"}))),
    }
    step, call = calls[command]
    rig.steps.fail(step, ENDINGS[ending]())
    with pytest.raises(RuntimeError, match=f"the engine ended with {ending}"):
        await call()
    rig.assert_rested()
    assert controller.stamp.version == "1"
    await controller.update(update_from("B", version="2"))
    await controller.resume()
    assert rig.engine.values() == {2.0}
    assert controller.machine.state is State.SERVING


@pytest.mark.parametrize("ending", TYPICAL)
async def test_an_engine_that_does_not_resume_after_an_update_leaves_it_paused(ending: str) -> None:
    rig = await serving_rig()
    rig.steps.fail("resume", ENDINGS[ending]())
    assert (await rig.controller.update(update_from("B", version="2"))).stamp.version == "2"
    assert rig.controller.machine.state is State.PAUSED
    await rig.controller.resume()
    rig.assert_rested()


@pytest.mark.parametrize("ending", TYPICAL)
async def test_hooks_that_end_so(ending: str) -> None:
    async def waits(source: str, version: str | None) -> None:
        raise ENDINGS[ending]()

    def refuses(source: str, version: str | None) -> Awaitable[None]:
        raise ENDINGS[ending]()

    def sees(change: Change) -> None:
        raise ENDINGS[ending]()

    def hears(news: UpdateNews) -> None:
        raise ENDINGS[ending]()

    for hook in (waits, refuses):
        rig = make_rig(pre_read=[hook], changed=[sees])
        async with rig.controller as controller:
            controller.observe_updates(hears)
            with pytest.raises(UpdateRejected, match=f"{hook.__name__}.*{ending}"):
                await controller.update(update_from("B"))
            await controller.pause(PauseMode.WAIT)
            await controller.resume()
            assert rig.engine.values() == {0.0}


class AtOnce:
    """A strategy whose ``open`` ends so when it is called."""

    def __init__(self, ending: str) -> None:
        self._ending = ending

    def open(self, update: Update, placement: Placement) -> AbstractAsyncContextManager[Stage]:
        raise ENDINGS[self._ending]()


class WithATask:
    """One that fails while its stage is read: a task of its own ends in that way."""

    def __init__(self, ending: str) -> None:
        self._ending = ending

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        inner = asyncio.get_running_loop().create_future()
        try:
            yield FakeStage(fake_weights(2.0), steps=Steps())
        finally:
            inner.set_exception(ENDINGS[self._ending]())
            await inner


@pytest.mark.parametrize("ending", TYPICAL)
@pytest.mark.parametrize("kind", [AtOnce, WithATask])
async def test_strategies_that_end_so_at_once_or_in_the_end(
    kind: Callable[[str], LoadStrategy], ending: str
) -> None:
    engine = FakeEngine()
    async with Controller(engine, strategies={"fake": kind(ending)}) as controller:
        with pytest.raises(UpdateRejected, match=ending):
            await controller.update(update_from("B"))
        assert controller.machine.state is State.SERVING
        assert engine.values() == {0.0}
        assert controller.counters.updates["fake", "rejected"] == 1


async def test_a_real_cancellation_of_such_an_update_is_one() -> None:
    """Beside all of this, who cancels an update that waits for its source has cancelled it."""
    rig = await serving_rig()
    hold = rig.steps.hold("open")
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def update() -> None:
                await rig.controller.update(update_from("B", version="2"))

            tasks.start_soon(update)
            await hold.arrived.wait()
            scope.cancel()
    assert scope.cancelled_caught
    assert rig.controller.counters.updates["fake", "cancelled"] == 1
    await assert_goes_on(rig, weights={1.0})


async def test_a_message_that_cannot_be_read_is_an_update_that_failed() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit(4)

    class Refused(UpdateRejected):
        def __str__(self) -> str:
            raise KeyError("words")

    for error in (Mute(), Refused(), OSError("\ud800 \udcff")):
        rig = await serving_rig()
        rig.steps.fail("bucket", error)
        with pytest.raises(HotswapError):
            await rig.controller.update(update_from("B", version="2"))
        await assert_goes_on(rig, weights={1.0})
