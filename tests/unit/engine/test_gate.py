from __future__ import annotations

import time

import pytest

from hotswap.engine.gate import Gate, GateState, PauseTicket
from hotswap.errors import Overtaken
from hotswap.types import PauseMode


def ticket(mode: PauseMode = PauseMode.WAIT) -> PauseTicket:
    made = PauseTicket(mode)
    assert made.answer.set_running_or_notify_cancel()
    return made


def draining(gate: Gate, count: int = 1) -> list[PauseTicket]:
    tickets = [ticket() for _ in range(count)]
    for one in tickets:
        gate.drain(one)
    assert gate.state is GateState.DRAINING
    return tickets


def closed(gate: Gate) -> PauseTicket:
    closer = ticket(PauseMode.ABORT)
    gate.close(closer, num_aborted=3, since=1.5)
    assert gate.state is GateState.CLOSED
    return closer


def test_close_answers_at_once() -> None:
    answer = closed(Gate()).answer.result(0)
    assert (answer.num_aborted, answer.since) == (3, 1.5)


def test_a_drain_is_answered_when_nothing_runs() -> None:
    gate = Gate()
    tickets = draining(gate, 2)
    assert not any(one.answer.done() for one in tickets)
    gate.drained(since=2.5)
    assert [one.answer.result(0).since for one in tickets] == [2.5, 2.5]
    assert gate.state is GateState.CLOSED


def test_a_drain_of_a_closed_gate_is_over_at_once() -> None:
    gate = Gate()
    closed(gate)
    late = ticket()
    gate.drain(late)
    assert 0 < late.answer.result(0).since <= time.perf_counter()
    assert gate.state is GateState.CLOSED


@pytest.mark.parametrize("state", [GateState.OPEN, GateState.CLOSED])
def test_drained_means_nothing_to_a_gate_that_does_not_drain(state: GateState) -> None:
    gate = Gate()
    if state is GateState.CLOSED:
        closed(gate)
    gate.drained(since=2.5)
    assert gate.state is state


def test_the_one_who_closed_it_may_take_that_back() -> None:
    gate = Gate()
    gate.take_back(closed(gate))
    assert gate.state is GateState.OPEN
    (waiter,) = draining(gate)
    gate.drained(since=2.5)
    gate.take_back(waiter)
    assert gate.state is GateState.OPEN


def test_what_another_pause_relies_on_is_not_taken_back() -> None:
    gate = Gate()
    first = closed(gate)
    second = closed(gate)
    gate.take_back(first)
    gate.take_back(second)
    assert gate.state is GateState.CLOSED
    gate.open()
    tickets = draining(gate, 2)
    gate.drained(since=2.5)
    for one in tickets:
        gate.take_back(one)
    assert gate.state is GateState.CLOSED


def test_a_drain_lasts_as_long_as_somebody_waits() -> None:
    gate = Gate()
    states = []
    for one in draining(gate, 2):
        gate.take_back(one)
        states.append(gate.state)
    assert states == [GateState.DRAINING, GateState.OPEN]


def test_a_ticket_that_never_came_through_takes_nothing_back() -> None:
    gate = Gate()
    closed(gate)
    gate.take_back(ticket())
    assert gate.state is GateState.CLOSED


def test_opening_overtakes_a_drain() -> None:
    gate = Gate()
    (waiter,) = draining(gate)
    gate.open()
    with pytest.raises(Overtaken, match="overtaken by a resume"):
        waiter.answer.result(0)
    assert gate.state is GateState.OPEN


def test_a_gate_that_fails_tells_those_who_wait() -> None:
    gate = Gate()
    (waiter,) = draining(gate)
    gate.fail(RuntimeError("gone"))
    with pytest.raises(RuntimeError, match="gone"):
        waiter.answer.result(0)


def test_reprs() -> None:
    gate = Gate()
    assert repr(gate) == "<Gate open>"
    assert repr(ticket()) == "<PauseTicket wait pending>"
    assert repr(closed(gate)) == "<PauseTicket abort done>"
