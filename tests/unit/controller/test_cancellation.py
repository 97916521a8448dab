"""Every await is a place to be cancelled: cancel at each, in both ways."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count

import anyio
import pytest

from hotswap.errors import UpdateFailed
from hotswap.state import Facts, Weights
from hotswap.testing.rig import CANCELS, Rig, make_rig, settle, update_from
from hotswap.types import InFlightCounts, LoadMode, PauseMode, WeightStamp

MODES = list(LoadMode)
GATES = [None, PauseMode.IN_PLACE]
VERSION_1 = WeightStamp(version="1", update_count=1, epoch=1)


async def hook(source: str, version: str | None) -> None:
    await anyio.lowlevel.checkpoint()


async def whole_rig(gate: PauseMode | None) -> Rig:
    """A server with checkpoint A, version "1", and two requests that live through a pause."""
    rig = make_rig(pre_read=[hook])
    await rig.controller.start()
    await rig.controller.update(update_from("A", version="1"))
    rig.run_requests(2)
    if gate is not None:
        await rig.controller.pause(gate)
    rig.engine.calls.clear()
    rig.steps.passed.clear()
    return rig


async def assert_undone(rig: Rig, before: Facts) -> None:
    assert rig.controller.machine.facts == before
    assert rig.controller.stamp == rig.engine.stamp == VERSION_1
    assert rig.engine.values() == {1.0}
    assert rig.controller.counters.updates["fake", "cancelled"] == 1


async def assert_done(rig: Rig, before: Facts) -> None:
    assert rig.controller.machine.facts == before
    assert rig.controller.stamp == rig.engine.stamp
    assert rig.controller.stamp == WeightStamp(version="2", update_count=2, epoch=2)
    assert rig.controller.last_update is not None
    assert rig.controller.last_update.stamp == rig.controller.stamp
    assert rig.engine.values() == {2.0}
    assert rig.controller.counters.updates["fake", "committed"] == 2
    assert rig.controller.counters.updates["fake", "cancelled"] == 0


@pytest.mark.parametrize("way", CANCELS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("gate", "pause_mode"),
    [
        (None, PauseMode.RETRACT),
        (PauseMode.IN_PLACE, PauseMode.RETRACT),
        (PauseMode.IN_PLACE, None),  # no await is left between the staging and the writes
    ],
)
async def test_update_cancelled_at_every_await(
    way: str, mode: LoadMode, gate: PauseMode | None, pause_mode: PauseMode | None
) -> None:
    """Before the first write all is undone; from there on all is done."""
    update = update_from("B", version="2", mode=mode, pause_mode=pause_mode)
    undone = done = 0
    for at in count():
        rig = await whole_rig(gate)
        before = rig.controller.machine.facts
        if not await CANCELS[way](rig.steps, at, partial(rig.controller.update, update)):
            break
        await settle()
        if "write" in rig.steps.passed:
            await assert_done(rig, before)
            done += 1
        else:
            await assert_undone(rig, before)
            undone += 1
        rig.assert_rested()
        assert rig.engine.in_flight.total == 2
        report = await rig.controller.update(update_from("A", pause_mode=PauseMode.RETRACT))
        assert report.stamp.epoch == rig.controller.stamp.epoch
        assert rig.engine.values() == {1.0}
        rig.assert_rested()
    # Staged: open, close, pause | write, commit, flush, resume; under a pause without
    # the resume, and without the pause unless it is a stronger one. Direct: close is last.
    order = [*(["open", "close"] if mode is LoadMode.STAGED else ["open"])]
    assert undone == len(order) + (pause_mode is not None)
    assert done >= 3


@pytest.mark.parametrize("way", CANCELS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", ["write", "commit", "flush"])
async def test_update_that_is_cancelled_and_fails_is_torn(
    way: str, mode: LoadMode, step: str
) -> None:
    """The failure is raised, for it is what the weights are left with."""
    rig = await whole_rig(None)
    order = {
        LoadMode.STAGED: ["open", "close", "pause", "write", "commit", "flush"],
        LoadMode.DIRECT: ["open", "pause", "write", "write", "write", "commit", "flush"],
    }[mode]
    rig.steps.fail(step, RuntimeError("the last straw"))
    if mode is LoadMode.STAGED and step != "flush":
        rig.steps.fail(step, RuntimeError("the last straw"), at=1)  # or it rolls forward
    update = update_from("B", version="2", mode=mode, pause_mode=PauseMode.ABORT)
    with pytest.raises(UpdateFailed, match="the last straw"):
        await CANCELS[way](rig.steps, order.index(step), partial(rig.controller.update, update))
    await settle()
    assert rig.controller.machine.facts == Facts(weights=Weights.TORN)
    assert rig.controller.stamp == VERSION_1
    rig.assert_rested()
    await rig.controller.update(update_from("B", version="3"))
    assert rig.controller.machine.facts == Facts()
    assert rig.engine.values() == {2.0}
    rig.assert_rested()


@pytest.mark.parametrize("way", CANCELS)
async def test_direct_update_cancelled_while_its_first_bucket_is_read(way: str) -> None:
    """The reader has ended and the engine runs again before the caller leaves."""
    rig = await whole_rig(None)
    rig.engine.in_flight = InFlightCounts()
    reading, go = anyio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    scope = anyio.CancelScope()

    def wait() -> None:
        loop.call_soon_threadsafe(reading.set)
        go.wait()

    rig.strategy.before_bucket = wait

    async def call() -> None:
        with scope:
            await rig.controller.update(update_from("B", mode=LoadMode.DIRECT))

    task = asyncio.ensure_future(call())
    await reading.wait()
    hold = rig.steps.hold("resume")
    cancel = scope.cancel if way == "scope" else task.cancel
    cancel()
    await settle()
    assert not task.done()
    go.set()
    await hold.arrived.wait()
    task.cancel()  # again, while the pause is being undone
    await settle()
    assert not task.done()
    hold.release()
    await asyncio.wait([task])
    assert rig.engine.calls == ["pause", "resume"]
    await assert_undone(rig, Facts())
    rig.assert_rested()


@pytest.mark.parametrize("way", CANCELS)
@pytest.mark.parametrize("mode", MODES)
async def test_update_cancelled_while_it_waits_for_its_turn(way: str, mode: LoadMode) -> None:
    rig = await whole_rig(None)
    hold = rig.steps.hold("flush")
    rig.engine.in_flight = InFlightCounts()
    flush = asyncio.ensure_future(rig.controller.flush())
    await hold.arrived.wait()
    scope = anyio.CancelScope()

    async def update() -> None:
        with scope:
            await rig.controller.update(update_from("B", version="2", mode=mode))

    waiting = asyncio.ensure_future(update())
    while rig.controller.queue.waiting < 1:
        await anyio.lowlevel.checkpoint()
    if way == "scope":
        scope.cancel()
    else:
        waiting.cancel()
    await asyncio.wait([waiting])
    assert rig.controller.queue.waiting == 0
    hold.release()
    await flush
    await assert_undone(rig, Facts())
    rig.assert_rested()


@pytest.mark.parametrize("way", CANCELS)
@pytest.mark.parametrize("command", ["resume", "flush"], ids=lambda name: str(name))
async def test_short_commands_cancelled_at_every_await_run_to_their_end(
    way: str, command: str
) -> None:
    cancelled = 0
    for at in count():
        rig = await whole_rig(PauseMode.RETRACT)
        rig.engine.cached = 4
        call: Callable[[], Awaitable[object]] = getattr(rig.controller, command)
        if not await CANCELS[way](rig.steps, at, call):
            break
        await settle()
        cancelled += 1
        rig.assert_rested()
        wanted = Facts() if command == "resume" else Facts(gate=PauseMode.RETRACT)
        assert rig.controller.machine.facts == wanted
        assert rig.engine.cached == (0 if command == "flush" else 4)
        await rig.controller.update(update_from("B", pause_mode=PauseMode.RETRACT))
        rig.assert_rested()
    assert cancelled == 1


@pytest.mark.parametrize("mode", MODES)
async def test_bounded_by_wait_for(mode: LoadMode) -> None:
    """The plain asyncio way for an embedder to bound a call."""
    rig = await whole_rig(None)
    rig.engine.in_flight = InFlightCounts()
    hold = rig.steps.hold("open")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rig.controller.update(update_from("B", mode=mode)), 0.01)
    hold.release()
    await assert_undone(rig, Facts())
    rig.assert_rested()


@pytest.mark.parametrize("mode", MODES)
async def test_loop_that_dies_in_a_commit_leaves_torn_facts(mode: LoadMode) -> None:
    """What asyncio.run does at its end: cancel every task, the commit's own included."""
    rig = await whole_rig(None)
    rig.engine.in_flight = InFlightCounts()
    hold = rig.steps.hold("commit")
    before = asyncio.all_tasks()
    update = asyncio.ensure_future(rig.controller.update(update_from("B", mode=mode)))
    await hold.arrived.wait()
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await asyncio.wait([update])
    assert update.cancelled()
    await settle()
    assert rig.controller.machine.facts == Facts(weights=Weights.TORN)
    assert rig.controller.stamp == VERSION_1
    rig.assert_rested()
