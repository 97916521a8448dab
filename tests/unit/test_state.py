"""The table, exhausted: every fact, guard, command and outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.errors import CommandError, IllegalCommand, InFlight
from hotswap.state import (
    GUARDS,
    RESTING,
    TABLE,
    Activity,
    Change,
    Command,
    Facts,
    Kv,
    Machine,
    Outcome,
    Situation,
    State,
    Weights,
    forward_allowed,
    state_of,
    update_command,
)
from hotswap.states_page import every_facts, every_situation
from hotswap.types import PauseMode

S, C = State, Command

LEGAL = {
    C.PAUSE: {S.SERVING, S.PAUSED, S.SLEEPING, S.INVALID},
    C.RESUME: {S.SERVING, S.PAUSED, S.SLEEPING},
    C.FLUSH: {S.SERVING, S.PAUSED, S.SLEEPING, S.INVALID},
    C.UPDATE: {S.PAUSED, S.SLEEPING, S.INVALID},
    C.SWAP: {S.SERVING},
    C.SLEEP: {S.SERVING, S.PAUSED, S.SLEEPING, S.INVALID},
    C.WAKE: {S.SLEEPING},
    C.RELABEL: {S.SERVING, S.PAUSED},
    C.RESET: {S.SERVING, S.PAUSED, S.SLEEPING, S.INVALID},
}
"""The design's table, written a second time."""

DURING = {
    C.PAUSE: Activity.NOTHING,
    C.RESUME: Activity.NOTHING,
    C.FLUSH: Activity.FLUSHING,
    C.UPDATE: Activity.UPDATING,
    C.SWAP: Activity.UPDATING,
    C.SLEEP: Activity.UPDATING,
    C.WAKE: Activity.UPDATING,
    C.RELABEL: Activity.UPDATING,
    C.RESET: Activity.UPDATING,
}
TOUCHING = {C.UPDATE, C.SWAP, C.SLEEP, C.WAKE, C.RESET}


def expected_refusal(facts: Facts, command: Command, now: Situation) -> type[CommandError] | None:
    """The design's guards, written a second time."""
    if state_of(facts) not in LEGAL[command]:
        return IllegalCommand
    if command is C.FLUSH and now.holding_kv:
        return InFlight
    beside = command is C.SWAP or (command is C.RESET and state_of(facts) is S.SERVING)
    if beside and now.in_flight and not (command is C.SWAP and now.pauses_itself):
        return InFlight
    if command is C.SLEEP and not now.pauses_itself:
        serving = state_of(facts) is S.SERVING
        if now.in_flight if serving else now.holding_kv:
            return InFlight
    if command in (C.UPDATE, C.RESET):
        released = facts.weights in (Weights.RELEASED, Weights.RELEASED_TORN)
        enough = facts.weights is Weights.WHOLE or now.full_coverage or now.chunk
        if released or (command is C.UPDATE and not enough):
            return IllegalCommand
    return None


def expected_after(facts: Facts, command: Command, outcome: Outcome, now: Situation) -> Facts:
    """The design's success and failure columns, written a second time."""
    if outcome is Outcome.TORN or (command is C.RESET and outcome is Outcome.DONE):
        return replace(facts, weights=Weights.TORN)
    if outcome is Outcome.UNDONE or command in (C.FLUSH, C.RELABEL):
        return facts
    if command is C.PAUSE:
        return replace(facts, gate=now.mode)
    if command is C.RESUME:
        return replace(facts, gate=None)
    if command in (C.UPDATE, C.SWAP):
        others_follow = now.chunk and not now.full_coverage
        return facts if others_follow else replace(facts, weights=Weights.WHOLE)
    asleep = command is C.SLEEP
    if "kv_cache" in now.releases:
        facts = replace(facts, kv=Kv.RELEASED if asleep else Kv.RESIDENT)
    if "weights" in now.releases:
        facts = replace(facts, weights=moved(facts.weights, asleep=asleep, restored=now.restored))
    return facts


def moved(weights: Weights, *, asleep: bool, restored: bool) -> Weights:
    released = {
        Weights.WHOLE: Weights.RELEASED,
        Weights.TORN: Weights.RELEASED_TORN,
        Weights.NEVER_LOADED: Weights.RELEASED_TORN,
    }
    if asleep:
        return released.get(weights, weights)
    back = {Weights.RELEASED: Weights.WHOLE, Weights.RELEASED_TORN: Weights.TORN}
    if weights not in back:
        return weights
    return back[weights] if restored else Weights.NEVER_LOADED


def cases() -> Iterator[tuple[Facts, Command, Situation]]:
    yield from product(list(every_facts()), Command, list(every_situation()))


def test_every_state_is_derived_from_the_facts_in_the_order_of_the_design() -> None:
    for facts, busy in product(every_facts(), Activity):
        facts = replace(facts, busy=busy)
        if busy is Activity.UPDATING:
            wanted = S.UPDATING
        elif busy is Activity.FLUSHING:
            wanted = S.FLUSHING
        elif "released" in facts.weights or facts.kv is Kv.RELEASED:
            wanted = S.SLEEPING
        elif facts.weights is not Weights.WHOLE:
            wanted = S.INVALID
        else:
            wanted = S.SERVING if facts.gate is None else S.PAUSED
        assert state_of(facts) is wanted
        assert forward_allowed(facts) is (wanted is S.SERVING)
        assert update_command(facts) is (C.SWAP if wanted is S.SERVING else C.UPDATE)


def test_table_holds_exactly_the_commands_of_the_design() -> None:
    wanted = {(state, command) for command, states in LEGAL.items() for state in states}
    assert set(TABLE) == wanted
    assert set(RESTING) == set(State) - {S.UPDATING, S.FLUSHING}
    for (_, command), rule in TABLE.items():
        assert rule.during is DURING[command]
        assert rule.touches_weights is (command in TOUCHING)
        assert set(rule.guards) <= set(GUARDS)


def test_every_command_is_legal_or_refused_as_the_design_says() -> None:
    refused = legal = 0
    machines = {facts: Machine(facts) for facts in every_facts()}
    for facts, command, now in cases():
        error = expected_refusal(facts, command, now)
        if error is None:
            assert machines[facts].check(command, now) is TABLE[state_of(facts), command]
            legal += 1
            continue
        with pytest.raises(CommandError) as caught:
            machines[facts].check(command, now)
        assert type(caught.value) is error
        assert machines[facts].facts == facts
        refused += 1
    assert refused > 1000
    assert legal > 1000


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
def test_every_outcome_sets_the_facts_that_the_design_says(every: int) -> None:
    tried = dict.fromkeys(product(Command, Outcome), 0)
    for facts, command, now in islice(cases(), 0, None, every):
        if expected_refusal(facts, command, now) is not None:
            continue
        for outcome in Outcome:
            machine = Machine(facts)
            machine.begin(command, now)
            assert machine.facts == replace(facts, busy=DURING[command])
            if outcome is Outcome.TORN and command not in TOUCHING:
                with pytest.raises(IllegalCommand, match="cannot tear"):
                    machine.finish(outcome, now)
                machine.finish(Outcome.UNDONE, now)
                assert machine.facts == facts
                continue
            machine.finish(outcome, now)
            assert machine.facts == expected_after(facts, command, outcome, now)
            tried[command, outcome] += 1
    untried = {key for key, count in tried.items() if not count}
    assert untried == {(c, Outcome.TORN) for c in Command if c not in TOUCHING}


@pytest.mark.parametrize("busy", [Activity.UPDATING, Activity.FLUSHING])
@pytest.mark.parametrize("command", Command)
def test_nothing_is_legal_while_busy(busy: Activity, command: Command) -> None:
    with pytest.raises(IllegalCommand, match="wait until the state rests"):
        Machine(Facts(busy=busy)).check(command, Situation())


@pytest.mark.parametrize("running", [C.PAUSE, C.FLUSH, C.SWAP])
@pytest.mark.parametrize("command", Command)
def test_second_command_is_refused_while_one_runs(running: Command, command: Command) -> None:
    machine = Machine()
    machine.begin(running, Situation())
    before = machine.facts
    with pytest.raises(IllegalCommand, match=f"while {running} runs"):
        machine.begin(command, Situation())
    assert machine.facts == before
    machine.finish(Outcome.UNDONE, Situation())
    assert machine.state is S.SERVING


def test_refusal_says_what_was_seen_and_what_to_do() -> None:
    hints = {
        (Facts(weights=Weights.TORN), C.RESUME): "resume is not legal while invalid: .*full update",
        (Facts(), C.UPDATE): "update is not legal while serving: pause first, or ask for a swap",
        (Facts(), C.WAKE): "nothing sleeps",
        (Facts(gate=PauseMode.ABORT), C.SWAP): "ask for an update",
    }
    for (facts, command), hint in hints.items():
        with pytest.raises(IllegalCommand, match=hint):
            Machine(facts).check(command, Situation())
    with pytest.raises(InFlight, match=r'pause_generation\(mode="abort"\).*abort_all_requests'):
        Machine().check(C.SWAP, Situation(in_flight=1))


def test_finish_without_begin_is_refused() -> None:
    with pytest.raises(IllegalCommand, match="without a begin"):
        Machine().finish(Outcome.DONE, Situation())


def test_observers_see_every_change_in_order() -> None:
    machine, seen = Machine(), list[Change]()
    machine.observe(seen.append)
    machine.observe(lambda change: seen.append(change))
    machine.begin(C.PAUSE, Situation())
    assert seen == []  # no fact changed yet
    machine.finish(Outcome.DONE, Situation(mode=PauseMode.RETRACT))
    machine.begin(C.UPDATE, Situation())
    machine.finish(Outcome.TORN, Situation())
    assert seen[::2] == seen[1::2]
    assert [(change.command, change.outcome, change.states) for change in seen[::2]] == [
        (C.PAUSE, Outcome.DONE, (S.SERVING, S.PAUSED)),
        (C.UPDATE, None, (S.PAUSED, S.UPDATING)),
        (C.UPDATE, Outcome.TORN, (S.UPDATING, S.INVALID)),
    ]
    assert seen[0].before == Facts()
    assert seen[0].after == Facts(gate=PauseMode.RETRACT)


def test_repr_names_the_state() -> None:
    assert repr(Machine()).startswith("<Machine serving Facts(gate=None")


MOVES = st.tuples(
    st.sampled_from(Command),
    st.sampled_from(Outcome),
    st.sampled_from(list(every_situation())),
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([Facts(), Facts(weights=Weights.NEVER_LOADED)]), st.lists(MOVES, max_size=12)
)
def test_forward_passes_never_run_on_weights_that_are_not_whole(
    start: Facts, moves: list[tuple[Command, Outcome, Situation]]
) -> None:
    """Walk the machine beside the bytes themselves: live ones, and the copy of a sleep."""
    machine = Machine(start)
    live, copy = start.weights is Weights.WHOLE, False
    for command, outcome, now in moves:
        resident = machine.facts.weights.resident
        try:
            machine.begin(command, now)
        except CommandError:
            continue
        assert not (machine.facts.busy is not Activity.NOTHING and forward_allowed(machine.facts))
        if outcome is Outcome.TORN and command not in TOUCHING:
            outcome = Outcome.UNDONE
        machine.finish(outcome, now)
        if outcome is Outcome.TORN or (command is C.RESET and outcome is Outcome.DONE):
            live = False
        elif outcome is Outcome.DONE and command in (C.UPDATE, C.SWAP):
            live = live or now.full_coverage
        elif outcome is Outcome.DONE and "weights" in now.releases:
            if command is C.SLEEP and resident:
                live, copy = False, live
            elif command is C.WAKE and not resident:
                live = copy and now.restored
        if forward_allowed(machine.facts):
            assert live
