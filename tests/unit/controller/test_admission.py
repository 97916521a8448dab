"""Who may enter, who waits, who turns back."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from hotswap.admission import Admission, WhilePaused
from hotswap.errors import Paused, ShuttingDown, WeightsNotWhole
from hotswap.state import Command, Facts, Kv, Machine, Outcome, Situation, Weights
from hotswap.testing.rig import make_rig, update_from
from hotswap.types import InFlightCounts, PauseMode

POLICIES = list(WhilePaused)
SHUT_GATE = Facts(gate=PauseMode.RETRACT)


def door(facts: Facts, policy: WhilePaused, *, hold_s: float = 30) -> tuple[Machine, Admission]:
    machine = Machine(facts)
    return machine, Admission(machine, while_paused=policy, hold_s=hold_s)


def run(machine: Machine, command: Command, now: Situation) -> None:
    machine.begin(command, now)
    machine.finish(Outcome.DONE, now)


async def until_held(admission: Admission, count: int) -> None:
    while admission.held < count:
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("policy", POLICIES)
async def test_open_gate_lets_requests_in_without_giving_way(policy: WhilePaused) -> None:
    _, admission = door(Facts(), policy)
    other = asyncio.ensure_future(anyio.lowlevel.cancel_shielded_checkpoint())
    await admission.enter()
    assert not other.done(), "another task ran between the admission and the submit"
    await other


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "facts",
    [
        Facts(weights=Weights.TORN),
        Facts(weights=Weights.NEVER_LOADED, gate=PauseMode.ABORT),
        Facts(weights=Weights.RELEASED),
        Facts(kv=Kv.RELEASED),
    ],
)
async def test_without_whole_weights_nobody_waits(policy: WhilePaused, facts: Facts) -> None:
    machine, admission = door(facts, policy)
    with pytest.raises(WeightsNotWhole) as caught:
        await admission.enter()
    assert caught.value.retryable
    if facts.weights is Weights.TORN:
        machine.begin(Command.UPDATE, Situation())
        with pytest.raises(WeightsNotWhole, match="send a full update"):
            await admission.enter()


async def test_closed_gate_rejects_at_once() -> None:
    _, admission = door(SHUT_GATE, WhilePaused.REJECT)
    with pytest.raises(Paused, match=r"^generation is paused for a weight update; retry shortly$"):
        await admission.enter()
    assert admission.held == 0


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_pause_that_was_left_behind_says_how_to_end_it(policy: WhilePaused) -> None:
    now = 0.0
    machine = Machine(SHUT_GATE)
    admission = Admission(machine, while_paused=policy, hold_s=0, clock=lambda: now)
    now = 59.0
    run(machine, Command.FLUSH, Situation())  # somebody is still there
    now = 118.0
    with pytest.raises(Paused, match=r"update; retry shortly$"):
        await admission.enter()
    now = 119.0
    with pytest.raises(Paused, match=r"retry shortly \(.* for 60 s: POST /continue_generation"):
        await admission.enter()
    with admission.closed(), pytest.raises(Paused, match=r"retry shortly$"):
        await admission.enter()


async def test_closed_gate_holds_until_it_opens() -> None:
    machine, admission = door(SHUT_GATE, WhilePaused.HOLD)
    entering = asyncio.ensure_future(admission.enter())
    await until_held(admission, 1)
    run(machine, Command.UPDATE, Situation())  # still paused afterwards
    await anyio.lowlevel.checkpoint()
    assert not entering.done()
    await until_held(admission, 1)
    run(machine, Command.RESUME, Situation())
    await entering
    assert admission.held == 0


async def test_hold_is_bounded() -> None:
    _, admission = door(SHUT_GATE, WhilePaused.HOLD, hold_s=0.001)
    with pytest.raises(Paused, match="retry shortly"):
        await admission.enter()
    assert admission.held == 0


async def test_held_request_turns_back_when_the_weights_are_torn() -> None:
    machine, admission = door(SHUT_GATE, WhilePaused.HOLD)
    entering = asyncio.ensure_future(admission.enter())
    await until_held(admission, 1)
    machine.begin(Command.UPDATE, Situation())
    machine.finish(Outcome.TORN, Situation())
    with pytest.raises(WeightsNotWhole):
        await entering


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("command", [Command.SWAP, Command.FLUSH])
async def test_blink_of_a_swap_is_waited_out(policy: WhilePaused, command: Command) -> None:
    machine, admission = door(Facts(), policy)
    machine.begin(command, Situation())
    entering = asyncio.ensure_future(admission.enter())
    await until_held(admission, 1)
    machine.finish(Outcome.DONE, Situation())
    await entering


@pytest.mark.parametrize("policy", POLICIES)
async def test_wait_for_a_swap_is_bounded(policy: WhilePaused) -> None:
    machine, admission = door(Facts(), policy, hold_s=0)
    machine.begin(Command.SWAP, Situation())
    with pytest.raises(Paused):
        await admission.enter()


async def test_pause_that_begins_after_the_swap_keeps_the_waiting_request_out() -> None:
    machine, admission = door(Facts(), WhilePaused.REJECT)
    machine.begin(Command.SWAP, Situation())
    entering = asyncio.ensure_future(admission.enter())
    await until_held(admission, 1)
    machine.finish(Outcome.DONE, Situation())
    with admission.closed():
        with pytest.raises(Paused):
            await entering
        assert admission.closing
    await admission.enter()


async def test_cancelled_request_is_not_held_any_more() -> None:
    _, admission = door(SHUT_GATE, WhilePaused.HOLD)
    entering = asyncio.ensure_future(admission.enter())
    await until_held(admission, 1)
    entering.cancel()
    await asyncio.wait([entering])
    assert admission.held == 0


async def test_shutting_down_turns_everybody_back() -> None:
    _, admission = door(SHUT_GATE, WhilePaused.HOLD)
    entering = asyncio.ensure_future(admission.enter())
    await until_held(admission, 1)
    admission.shut()
    with pytest.raises(ShuttingDown, match="shutting down"):
        await entering
    assert not admission.open


async def test_pause_sees_every_request_that_was_admitted_before_it() -> None:
    """A18: whoever enters before the pause is in flight when the pause drains."""
    rig = make_rig()
    seen = list[int]()

    async def request() -> None:
        await rig.controller.admission.enter()
        count = rig.engine.in_flight.total + 1
        rig.engine.in_flight = InFlightCounts(running=count, holding_kv=count)

    async def pause() -> None:
        seen.append((await rig.controller.pause(PauseMode.ABORT)).num_aborted)

    async with rig.controller, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(request)
        tasks.start_soon(pause)
    assert seen == [3]


async def test_requests_that_arrive_while_paused_are_served_by_the_new_weights_only() -> None:
    """A18: pause, three requests, update, continue."""
    rig = make_rig(while_paused="hold")
    served = list[set[float]]()

    async def request() -> None:
        await rig.controller.admission.enter()
        served.append(rig.engine.values())

    async with rig.controller, anyio.create_task_group() as tasks:
        await rig.controller.pause(PauseMode.RETRACT)
        for _ in range(3):
            tasks.start_soon(request)
        await until_held(rig.controller.admission, 3)
        await rig.controller.update(update_from("B"))
        assert served == []
        await rig.controller.resume()
    assert served == [{2.0}] * 3


def test_repr() -> None:
    assert repr(door(Facts(), WhilePaused.HOLD)[1]) == "<Admission hold open=True held=0>"
