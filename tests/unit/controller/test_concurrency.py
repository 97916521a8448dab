"""Several callers at once: everybody is answered, about their own request."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from hotswap.errors import Busy, HotswapError, InFlight
from hotswap.state import Facts
from hotswap.testing.rig import Rig, make_rig, settle, update_from
from hotswap.types import InFlightCounts, LoadMode, PauseMode, UpdateReport

MODES = list(LoadMode)


async def until_waiting(rig: Rig, count: int) -> None:
    while rig.controller.queue.waiting < count:
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("modes", [(a, b) for a in MODES for b in MODES])
@pytest.mark.parametrize("gate", [None, PauseMode.ABORT])
async def test_two_updates_at_once(
    modes: tuple[LoadMode, LoadMode], gate: PauseMode | None
) -> None:
    """A14, fifty times: both answered, each about itself, one version in the end."""
    rig = make_rig()
    if gate is not None:
        await rig.controller.pause(gate)
    for turn in range(50):
        a, b = await asyncio.gather(
            rig.controller.update(update_from("A", version=f"A{turn}", mode=modes[0])),
            rig.controller.update(update_from("B", version=f"B{turn}", mode=modes[1])),
        )
        assert (a.stamp.version, b.stamp.version) == (f"A{turn}", f"B{turn}")
        assert {a.stamp.epoch, b.stamp.epoch} == {2 * turn + 1, 2 * turn + 2}
        last = max(a, b, key=lambda report: report.stamp.epoch)
        assert rig.controller.stamp == rig.engine.stamp == last.stamp
        assert rig.controller.last_update == last
        assert rig.engine.values() == {1.0 if last is a else 2.0}
        rig.assert_rested()
    assert rig.controller.counters.updates == {("fake", "committed"): 100}


async def test_one_checkpoint_at_a_time_is_held_in_memory() -> None:
    rig = make_rig()
    hold = rig.steps.hold("close")
    first = asyncio.ensure_future(rig.controller.update(update_from("A", version="first")))
    await hold.arrived.wait()
    second = asyncio.ensure_future(rig.controller.update(update_from("B", version="second")))
    await settle()
    assert rig.strategy.entered == 1
    direct = await rig.controller.update(update_from("B", version="direct", mode=LoadMode.DIRECT))
    hold.release()
    stamps = [direct.stamp, (await first).stamp, (await second).stamp]
    assert [(stamp.version, stamp.epoch) for stamp in stamps] == [
        ("direct", 1),
        ("first", 2),
        ("second", 3),
    ]
    assert rig.engine.values() == {2.0}
    rig.assert_rested()


async def test_an_update_waits_a_bounded_time_for_another_that_is_being_staged() -> None:
    rig = make_rig(queue_wait_s=0.01)
    hold = rig.steps.hold("open")
    first = asyncio.ensure_future(rig.controller.update(update_from("A", version="first")))
    await hold.arrived.wait()
    with pytest.raises(Busy, match=r"0\.01 s and another one is still being staged"):
        await rig.controller.update(update_from("B"))
    hold.release()
    assert (await first).stamp.version == "first"
    await rig.controller.update(update_from("B"))
    rig.assert_rested()


@pytest.mark.parametrize(
    ("mode", "aborted"),
    [(PauseMode.ABORT, 2), (PauseMode.RETRACT, 0), (PauseMode.IN_PLACE, 0)],
)
async def test_a_stronger_pause_ends_the_wait_of_a_swap(mode: PauseMode, aborted: int) -> None:
    """A5: the swap waits for requests that the pause would never let finish."""
    rig = make_rig()
    rig.run_requests(2)
    swap = asyncio.ensure_future(
        rig.controller.update(update_from("B", version="B", pause_mode=PauseMode.WAIT))
    )
    while rig.engine.modes != [PauseMode.WAIT]:
        await settle()
    assert not swap.done()
    report = await rig.controller.pause(mode)
    assert (report.mode, report.num_aborted) == (mode, aborted)
    assert (await swap).stamp.version == "B"
    assert rig.controller.machine.facts == Facts(gate=mode)
    assert rig.engine.values() == {2.0}
    rig.assert_rested()


async def test_a_pause_that_waits_too_lets_the_swap_drain() -> None:
    rig = make_rig()
    rig.run_requests(2)
    swap = asyncio.ensure_future(rig.controller.update(update_from("B", pause_mode=PauseMode.WAIT)))
    while rig.engine.modes != [PauseMode.WAIT]:
        await settle()
    pause = asyncio.ensure_future(rig.controller.pause(PauseMode.WAIT))
    await until_waiting(rig, 1)
    assert not swap.done()
    rig.engine.finish_requests()
    await swap
    assert (await pause).num_aborted == 0
    rig.assert_rested()


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_pause_while_an_update_is_staging(mode: PauseMode) -> None:
    """A5: neither waits for the other; the update then runs under the pause."""
    rig = make_rig()
    hold = rig.steps.hold("open")
    update = asyncio.ensure_future(rig.controller.update(update_from("B")))
    await hold.arrived.wait()
    assert (await rig.controller.pause(mode)).mode is mode
    hold.release()
    await update
    assert rig.controller.machine.facts == Facts(gate=mode)
    assert rig.engine.calls == ["pause", "write", "commit", "flush"]
    rig.assert_rested()


async def test_update_that_waits_behind_a_drain_runs_under_its_pause() -> None:
    """A5, the other way round: the answer is the one of the update's turn."""
    rig = make_rig()
    rig.run_requests(1)
    pause = asyncio.ensure_future(rig.controller.pause(PauseMode.WAIT))
    while not rig.engine.modes:
        await anyio.lowlevel.checkpoint()
    update = asyncio.ensure_future(rig.controller.update(update_from("B")))
    await until_waiting(rig, 1)
    rig.engine.finish_requests()
    await pause
    await update
    assert rig.controller.machine.facts == Facts(gate=PauseMode.WAIT)
    rig.assert_rested()


async def test_update_beside_running_requests_answers_at_once_and_the_pause_too() -> None:
    """A5 as reported: a long generation, an update, then pause(in_place)."""
    rig = make_rig()
    rig.run_requests(1)
    update = asyncio.ensure_future(rig.controller.update(update_from("B")))
    pause = asyncio.ensure_future(rig.controller.pause(PauseMode.IN_PLACE))
    with pytest.raises(InFlight):
        await update
    assert (await pause).mode is PauseMode.IN_PLACE
    await rig.controller.update(update_from("B"))
    await rig.controller.resume()
    assert rig.engine.in_flight == InFlightCounts(running=1, holding_kv=1)
    rig.assert_rested()


@pytest.mark.parametrize("mode", MODES)
async def test_pause_that_waits_for_a_commit_closes_admission_meanwhile(mode: LoadMode) -> None:
    rig = make_rig(while_paused="hold")
    hold = rig.steps.hold("commit")
    update = asyncio.ensure_future(rig.controller.update(update_from("B", mode=mode)))
    await hold.arrived.wait()
    pause = asyncio.ensure_future(rig.controller.pause(PauseMode.ABORT))
    await until_waiting(rig, 1)
    request = asyncio.ensure_future(rig.controller.admission.enter())
    hold.release()
    await asyncio.gather(update, pause)
    assert not request.done(), "a request slipped in between the swap and the pause"
    assert rig.controller.machine.facts == Facts(gate=PauseMode.ABORT)
    await rig.controller.resume()
    await request
    rig.assert_rested()


async def test_commands_past_the_bound_are_busy_and_flush_is_at_once() -> None:
    rig = make_rig(queue_wait_s=0.001)
    hold = rig.steps.hold("write")
    update = asyncio.ensure_future(rig.controller.update(update_from("A", version="1")))
    await hold.arrived.wait()
    for command in (
        lambda: rig.controller.pause(PauseMode.ABORT),
        rig.controller.resume,
        lambda: rig.controller.update(update_from("B", version="2")),
    ):
        with pytest.raises(Busy, match=r"still (runs|being staged)") as caught:
            await command()
        assert caught.value.retryable
    hold.release()
    await update
    assert rig.controller.stamp.version == "1"
    assert rig.engine.values() == {1.0}
    assert rig.controller.counters.updates["fake", "refused"] == 1
    rig.assert_rested()


@pytest.mark.parametrize("running", ["pause", "write", "flush"])
async def test_flush_never_waits(running: str) -> None:
    rig = make_rig()
    hold = rig.steps.hold(running)
    update = asyncio.ensure_future(rig.controller.update(update_from("A")))
    await hold.arrived.wait()
    flush = asyncio.ensure_future(rig.controller.flush())
    await anyio.lowlevel.checkpoint()
    assert flush.done(), "flush has to answer before anything else happens"
    with pytest.raises(Busy, match="flush found swap running"):
        await flush
    hold.release()
    await update
    rig.assert_rested()


async def test_flush_beside_requests_is_refused_and_works_once_they_are_parked() -> None:
    """A3: retracted requests hold no KV; running ones do."""
    rig = make_rig()
    rig.engine.cached = 7
    rig.run_requests(8)
    with pytest.raises(InFlight, match="retract"):
        await rig.controller.flush()
    assert rig.engine.cached == 7
    await rig.controller.pause(PauseMode.RETRACT)
    assert await rig.controller.flush() == 7
    await rig.controller.update(update_from("B"))
    await rig.controller.resume()
    assert rig.engine.in_flight.running == 8
    rig.assert_rested()


async def test_flush_that_fails_changes_nothing() -> None:
    rig = make_rig()
    rig.steps.fail("flush", RuntimeError("stuck"))
    with pytest.raises(RuntimeError, match="stuck"):
        await rig.controller.flush()
    assert rig.controller.machine.facts == Facts()
    rig.assert_rested()


async def test_staging_takes_no_turn() -> None:
    rig = make_rig()
    hold = rig.steps.hold("open")
    update = asyncio.ensure_future(rig.controller.update(update_from("A")))
    await hold.arrived.wait()
    await rig.controller.admission.enter()
    assert await rig.controller.flush() == 0
    await rig.controller.pause(PauseMode.ABORT)
    await rig.controller.resume()
    hold.release()
    await update
    rig.assert_rested()


async def test_a_crowd_is_answered_entirely() -> None:
    """O4: whatever the order, every call ends, and what is left is one version."""
    rig = make_rig()
    controller = rig.controller
    calls = [
        call
        for turn in range(20)
        for call in (
            controller.update(update_from("A", version=f"A{turn}")),
            controller.pause(list(PauseMode)[turn % 4]),
            controller.update(update_from("B", version=f"B{turn}", mode=LoadMode.DIRECT)),
            controller.resume(),
            controller.flush(),
            controller.update(update_from("wrong")),
        )
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert not [
        a for a in answers if isinstance(a, BaseException) and not isinstance(a, HotswapError)
    ]
    reports = [answer for answer in answers if isinstance(answer, UpdateReport)]
    assert sorted(report.stamp.epoch for report in reports) == list(range(1, len(reports) + 1))
    assert len(reports) == 40
    last = max(reports, key=lambda report: report.stamp.epoch)
    assert controller.stamp == last.stamp
    rig.assert_rested()
    assert len(rig.engine.values()) == 1
