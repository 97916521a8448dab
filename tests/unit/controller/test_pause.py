"""Pauses that drain, what overtakes them, and resumes."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from hotswap.controller import PauseReport
from hotswap.errors import IllegalCommand, Overtaken, Paused
from hotswap.state import Facts, Kv, State, Weights
from hotswap.testing.rig import make_rig, settle, update_from
from hotswap.types import InFlightCounts, PauseMode

MODES = list(PauseMode)
WAIT, IN_PLACE, RETRACT, ABORT = (
    PauseMode.WAIT,
    PauseMode.IN_PLACE,
    PauseMode.RETRACT,
    PauseMode.ABORT,
)


@pytest.mark.parametrize("mode", MODES)
async def test_pause_closes_the_gate_and_resume_opens_it(mode: PauseMode) -> None:
    rig = make_rig()
    async with rig.controller as controller:
        report = await controller.pause(mode)
        assert report == PauseReport(mode=mode, num_aborted=0)
        assert controller.machine.facts == Facts(gate=mode)
        assert controller.not_ready_reasons() == ["paused"]
        rig.assert_rested()
        await controller.resume()
        assert controller.machine.facts == Facts()
        assert controller.not_ready_reasons() == []
        rig.assert_rested()
    assert rig.engine.calls == ["pause", "resume"]


@pytest.mark.parametrize(
    ("mode", "aborted", "left"),
    [
        (ABORT, 3, InFlightCounts()),
        (RETRACT, 0, InFlightCounts(waiting=3)),
        (IN_PLACE, 0, InFlightCounts(running=3, holding_kv=3)),
    ],
)
async def test_pause_treats_requests_as_its_mode_says(
    mode: PauseMode, aborted: int, left: InFlightCounts
) -> None:
    rig = make_rig()
    rig.run_requests(3)
    report = await rig.controller.pause(mode)
    assert report.num_aborted == aborted
    assert rig.engine.in_flight == left


async def test_admission_closes_at_once_and_opens_with_the_resume() -> None:
    rig = make_rig()
    await rig.controller.start()
    pause = await rig.start_draining()
    assert rig.controller.machine.state is State.SERVING
    assert rig.controller.not_ready_reasons() == ["paused"]
    with pytest.raises(Paused):
        await rig.controller.admission.enter()
    rig.engine.finish_requests()
    assert (await pause).mode is WAIT
    with pytest.raises(Paused):
        await rig.controller.admission.enter()
    await rig.controller.resume()
    await rig.controller.admission.enter()
    rig.assert_rested()


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
async def test_pausing_again_succeeds_and_the_stronger_mode_counts(
    first: PauseMode, second: PauseMode
) -> None:
    rig = make_rig()
    await rig.controller.pause(first)
    rig.run_requests(1)  # frozen ones: nothing can finish them now
    report = await rig.controller.pause(second)
    stronger = max(first, second, key=lambda mode: mode.strength)
    assert report.mode is stronger
    assert rig.controller.machine.facts.gate is stronger
    assert report.num_aborted == (1 if stronger is ABORT else 0)
    rig.assert_rested()


@pytest.mark.parametrize("mode", MODES)
async def test_pause_is_legal_while_the_weights_are_not_whole(mode: PauseMode) -> None:
    rig = make_rig(facts=Facts(weights=Weights.TORN))
    async with rig.controller as controller:
        rig.run_requests(1)
        await controller.pause(mode)
        assert controller.machine.facts == Facts(weights=Weights.TORN, gate=mode)
        with pytest.raises(IllegalCommand, match="not whole"):
            await controller.resume()
        assert controller.not_ready_reasons() == ["paused", "weights_not_whole"]
        rig.assert_rested()


async def test_resume_while_asleep_is_remembered() -> None:
    rig = make_rig(facts=Facts(kv=Kv.RELEASED, gate=RETRACT))
    async with rig.controller as controller:
        await controller.resume()
        assert controller.machine.facts == Facts(kv=Kv.RELEASED)
        assert "resume" not in rig.engine.calls
        rig.assert_rested()


async def test_resume_is_idempotent() -> None:
    rig = make_rig()
    await rig.controller.resume()
    await rig.controller.resume()
    assert rig.controller.machine.facts == Facts()
    rig.assert_rested()


@pytest.mark.parametrize("stronger", [IN_PLACE, RETRACT, ABORT])
async def test_stronger_pause_takes_over_one_that_drains(stronger: PauseMode) -> None:
    rig = make_rig()
    first = await rig.start_draining()
    second = await rig.controller.pause(stronger)
    assert second == await first
    assert second == PauseReport(mode=stronger, num_aborted=2 if stronger is ABORT else 0)
    assert rig.controller.machine.facts == Facts(gate=stronger)
    assert rig.engine.modes == [WAIT, stronger]
    rig.assert_rested()


async def test_strongest_of_several_wins() -> None:
    rig = make_rig()
    first = await rig.start_draining()
    second = asyncio.ensure_future(rig.controller.pause(IN_PLACE))
    third = asyncio.ensure_future(rig.controller.pause(ABORT))
    reports = [await first, await second, await third]
    assert {report.mode for report in reports} == {ABORT}
    assert rig.controller.machine.facts.gate is ABORT
    rig.assert_rested()


async def test_stronger_pause_that_comes_as_the_engine_stops_is_applied_too() -> None:
    rig = make_rig()
    first = await rig.start_draining()
    rig.engine.finish_requests()  # the drain has what it waits for, and has not run yet
    rig.run_requests(1)
    rig.engine.finish_requests()
    second = await rig.controller.pause(ABORT)
    assert (await first).mode is second.mode is ABORT
    assert rig.engine.modes == [WAIT, ABORT]
    rig.assert_rested()


async def test_weaker_pause_waits_for_the_one_that_drains() -> None:
    rig = make_rig()
    first = await rig.start_draining()
    second = asyncio.ensure_future(rig.controller.pause(WAIT))
    await settle()
    assert not second.done()
    rig.engine.finish_requests()
    assert (await first, await second) == (PauseReport(mode=WAIT, num_aborted=0),) * 2
    rig.assert_rested()


async def test_resume_overtakes_a_pause_that_drains() -> None:
    rig = make_rig()
    pause = await rig.start_draining()
    await rig.controller.resume()
    await rig.controller.admission.enter()  # open already, not only once the pause has heard
    with pytest.raises(Overtaken, match="overtaken by a resume") as caught:
        await pause
    assert caught.value.retryable
    assert rig.controller.machine.facts == Facts()
    assert rig.engine.in_flight.total == 2
    rig.assert_rested()
    assert rig.controller.counters.commands["pause", "overtaken"] == 1


async def test_resume_overtakes_a_pause_that_has_not_yet_reached_the_engine() -> None:
    rig = make_rig()
    results = await asyncio.gather(
        rig.controller.pause(ABORT), rig.controller.resume(), return_exceptions=True
    )
    assert isinstance(results[0], Overtaken)
    assert results[1] is None
    assert "pause" not in rig.engine.calls
    assert rig.controller.machine.facts == Facts()
    rig.assert_rested()


async def test_resume_overtakes_a_stronger_pause_over_a_closed_gate_and_opens_it() -> None:
    rig = make_rig()
    await rig.controller.pause(IN_PLACE)
    hold = rig.steps.hold("pause")
    pause = asyncio.ensure_future(rig.controller.pause(ABORT))
    await hold.arrived.wait()
    await rig.controller.resume()
    with pytest.raises(Overtaken):
        await pause
    assert rig.controller.machine.facts == Facts()
    rig.assert_rested()


async def test_resume_that_is_illegal_overtakes_nothing() -> None:
    rig = make_rig(facts=Facts(weights=Weights.TORN))
    async with rig.controller as controller:
        hold = rig.steps.hold("pause")
        pause = asyncio.ensure_future(controller.pause(ABORT))
        await hold.arrived.wait()
        with pytest.raises(IllegalCommand, match="full update"):
            await controller.resume()
        hold.release()
        assert (await pause).mode is ABORT
        rig.assert_rested()


async def test_commands_that_wait_behind_a_drain_come_after_the_resume() -> None:
    rig = make_rig()
    await rig.controller.pause(IN_PLACE)
    hold = rig.steps.hold("pause")
    pause = asyncio.ensure_future(rig.controller.pause(ABORT))
    await hold.arrived.wait()
    update = asyncio.ensure_future(rig.controller.update(update_from("B")))
    while rig.controller.queue.waiting < 1:
        await anyio.lowlevel.checkpoint()
    await rig.controller.resume()
    with pytest.raises(Overtaken):
        await pause
    await update
    # A swap: the gate was open when its turn came. Before the resume it were an update.
    assert rig.controller.counters.commands["swap", "committed"] == 1
    assert rig.controller.machine.facts == Facts()
    rig.assert_rested()
