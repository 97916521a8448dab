"""Pauses and resumes that are cancelled or fail: the gate stays as it was."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from hotswap.drain import Drain
from hotswap.errors import Busy, Paused
from hotswap.state import Facts, State
from hotswap.testing.rig import CANCELS, make_rig, settle, update_from
from hotswap.types import PauseMode

MODES = list(PauseMode)
WAIT, IN_PLACE, RETRACT, ABORT = (
    PauseMode.WAIT,
    PauseMode.IN_PLACE,
    PauseMode.RETRACT,
    PauseMode.ABORT,
)


@pytest.mark.parametrize("way", CANCELS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gate", [None, IN_PLACE])
async def test_cancelled_pause_leaves_the_gate_as_it_was(
    way: str, mode: PauseMode, gate: PauseMode | None
) -> None:
    at = 0
    while True:
        rig = make_rig()
        if gate is not None:
            await rig.controller.pause(gate)
        before = rig.controller.machine.facts
        if not await CANCELS[way](rig.steps, at, partial(rig.controller.pause, mode)):
            break
        await settle()
        rig.assert_rested()
        assert rig.controller.machine.facts == before
        assert rig.controller.counters.commands["pause", "cancelled"] == 1
        await rig.controller.pause(ABORT)
        await rig.controller.resume()
        rig.assert_rested()
        at += 1
    assert at >= 1


async def test_cancelled_pause_reopens_admission() -> None:
    rig = make_rig()
    pause = await rig.start_draining()
    pause.cancel()
    await asyncio.wait([pause])
    assert pause.cancelled()
    assert rig.engine.in_flight.total == 2
    await rig.controller.admission.enter()
    rig.assert_rested()


async def test_drain_goes_on_while_one_of_two_callers_stays() -> None:
    for stays in ("weak", "strong"):
        rig = make_rig()
        weak = await rig.start_draining()
        hold = rig.steps.hold("pause")
        strong = asyncio.ensure_future(rig.controller.pause(RETRACT))
        await hold.arrived.wait()
        leaver, stayer = (strong, weak) if stays == "weak" else (weak, strong)
        leaver.cancel()
        await asyncio.wait([leaver])
        assert leaver.cancelled()
        with pytest.raises(Paused):
            await rig.controller.admission.enter()
        hold.release()
        assert (await stayer).mode is RETRACT
        assert rig.controller.machine.facts.gate is RETRACT
        rig.assert_rested()


async def test_caller_cancelled_again_while_its_pause_is_undone_waits_for_the_end() -> None:
    rig = make_rig()
    pause = await rig.start_draining()
    hold = rig.steps.hold("resume")
    pause.cancel()
    await hold.arrived.wait()
    pause.cancel()
    await settle()
    assert not pause.done()
    hold.release()
    await asyncio.wait([pause])
    assert pause.cancelled()
    rig.assert_rested()


async def test_pause_cancelled_once_the_engine_has_stopped_has_taken_place() -> None:
    rig = make_rig()
    pause = await rig.start_draining()
    rig.engine.finish_requests()
    pause.cancel()  # as a reply is lost on its way
    await asyncio.wait([pause])
    assert pause.cancelled()
    assert rig.controller.machine.facts == Facts(gate=WAIT)
    rig.assert_rested()


@pytest.mark.parametrize("gate", [None, RETRACT])
async def test_failed_pause_leaves_the_gate_as_it_was(gate: PauseMode | None) -> None:
    rig = make_rig()
    if gate is not None:
        await rig.controller.pause(gate)
    before = rig.controller.machine.facts
    rig.steps.fail("pause", RuntimeError("engine thread is gone"))
    with pytest.raises(RuntimeError, match="engine thread is gone"):
        await rig.controller.pause(ABORT)
    assert rig.controller.machine.facts == before
    rig.assert_rested()
    assert rig.controller.counters.commands["pause", "failed"] == 1


async def test_failed_pause_fails_everybody_who_joined_it() -> None:
    rig = make_rig()
    first = await rig.start_draining()
    rig.steps.fail("pause", RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        await rig.controller.pause(ABORT)
    with pytest.raises(RuntimeError, match="broken"):
        await first
    assert rig.controller.machine.facts == Facts()
    rig.assert_rested()


async def test_given_up_pause_whose_engine_fails_is_undone_all_the_same() -> None:
    rig = make_rig()
    hold = rig.steps.hold("pause")
    pause = asyncio.ensure_future(rig.controller.pause(ABORT))
    await hold.arrived.wait()
    rig.steps.fail("resume", RuntimeError("will not resume"))
    pause.cancel()
    await asyncio.wait([pause])
    assert pause.cancelled()
    # The engine stands still, and the facts say so.
    assert rig.controller.machine.state is State.PAUSED
    rig.engine.forward = False
    rig.assert_rested()
    await rig.controller.resume()
    rig.assert_rested()


async def test_failed_resume_leaves_the_gate_closed_and_can_be_sent_again() -> None:
    rig = make_rig()
    await rig.controller.pause(RETRACT)
    rig.steps.fail("resume", RuntimeError("not now"))
    with pytest.raises(RuntimeError, match="not now"):
        await rig.controller.resume()
    assert rig.controller.machine.facts == Facts(gate=RETRACT)
    rig.assert_rested()
    await rig.controller.resume()
    rig.assert_rested()
    assert rig.controller.counters.commands["resume", "failed"] == 1


@pytest.mark.parametrize("way", CANCELS)
async def test_cancelled_resume_takes_effect_entirely(way: str) -> None:
    rig = make_rig()
    await rig.controller.pause(RETRACT)
    assert await CANCELS[way](rig.steps, 0, rig.controller.resume)
    assert rig.controller.machine.facts == Facts()
    rig.assert_rested()


async def test_pause_behind_a_long_command_is_busy_and_reopens_admission() -> None:
    rig = make_rig(queue_wait_s=0)
    hold = rig.steps.hold("commit")
    update = asyncio.ensure_future(rig.controller.update(update_from("A")))
    await hold.arrived.wait()
    with pytest.raises(Busy, match="pause waited 0 s and swap still runs"):
        await rig.controller.pause(ABORT)
    assert not rig.controller.admission.closing
    with pytest.raises(Busy):
        await rig.controller.resume()
    hold.release()
    await update
    rig.assert_rested()


async def test_join_needs_a_start() -> None:
    drain = Drain(WAIT)
    assert repr(drain) == "<Drain wait waiting=0>"
    with pytest.raises(AssertionError, match="join before start"):
        await drain.join()
