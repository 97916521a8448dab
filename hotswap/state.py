"""The state machine as data: four facts, a derived state, one table with guards.

Rules:

* Facts are all that changes; the state is computed from them and never stored.
* ``TABLE`` alone decides legality. Nothing else in hotswap compares states to
  decide whether a command may run.
* A command is ``begin`` (guards checked, ``busy`` set) and then exactly one
  ``finish`` with the outcome, which sets the facts.

There is no event loop and no torch in here: ``controller.py`` does the waiting.
``docs/reference/states.md`` is generated from this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from hotswap.errors import CommandError, IllegalCommand, InFlight
from hotswap.types import PauseMode

__all__ = [
    "GUARDS",
    "RESTING",
    "TABLE",
    "Activity",
    "Change",
    "Command",
    "Facts",
    "Guard",
    "Kv",
    "Machine",
    "Outcome",
    "Rule",
    "Situation",
    "State",
    "Weights",
    "forward_allowed",
    "state_of",
    "update_command",
]


class State(StrEnum):
    """What a server is doing; derived from :class:`Facts`."""

    SERVING = "serving"
    PAUSED = "paused"
    FLUSHING = "flushing"
    UPDATING = "updating"
    SLEEPING = "sleeping"
    INVALID = "invalid"


class Command(StrEnum):
    """What a caller may ask for."""

    PAUSE = "pause"
    RESUME = "resume"
    FLUSH = "flush"
    UPDATE = "update"
    SWAP = "swap"
    SLEEP = "sleep"
    WAKE = "wake"
    RELABEL = "relabel"
    RESET = "reset"


class Weights(StrEnum):
    """Whether the live weights are one checkpoint, entirely.

    ``released_torn`` had not been whole when their memory was released: a copy that
    is brought back is not whole either.
    """

    WHOLE = "whole"
    TORN = "torn"
    NEVER_LOADED = "never_loaded"
    RELEASED = "released"
    RELEASED_TORN = "released_torn"

    @property
    def resident(self) -> bool:
        """Whether they have memory, whatever is in it."""
        return self not in (Weights.RELEASED, Weights.RELEASED_TORN)


class Kv(StrEnum):
    """Whether the KV cache has memory."""

    RESIDENT = "resident"
    RELEASED = "released"


class Activity(StrEnum):
    """What a running command keeps the forward pass from doing."""

    NOTHING = "nothing"
    FLUSHING = "flushing"
    UPDATING = "updating"


class Outcome(StrEnum):
    """How a command ended: done, undone (all as before), or torn (weights not whole)."""

    DONE = "done"
    UNDONE = "undone"
    TORN = "torn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that the machine remembers. ``gate`` is None while it is open."""

    gate: PauseMode | None = None
    weights: Weights = Weights.WHOLE
    kv: Kv = Kv.RESIDENT
    busy: Activity = Activity.NOTHING


def state_of(facts: Facts) -> State:
    """Derive the state; the order of the tests is the order of the design's table."""
    if facts.busy is not Activity.NOTHING:
        return State.UPDATING if facts.busy is Activity.UPDATING else State.FLUSHING
    if not facts.weights.resident or facts.kv is Kv.RELEASED:
        return State.SLEEPING
    if facts.weights is not Weights.WHOLE:
        return State.INVALID
    return State.SERVING if facts.gate is None else State.PAUSED


def forward_allowed(facts: Facts) -> bool:
    """Whether the engine may run a forward pass."""
    return state_of(facts) is State.SERVING


def update_command(facts: Facts) -> Command:
    """The command that a request to change weights means now: swap pauses by itself."""
    return Command.SWAP if state_of(facts) is State.SERVING else Command.UPDATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What guards and outcomes may look at besides the facts.

    ``pauses_itself``: the swap brings a pause mode for requests in flight.
    ``full_coverage``: every weight is new after it; ``chunk``: or after others like it.
    ``releases`` are the tags that a sleep releases or a wake brings back;
    ``restored``: the wake brought the released weights back from a copy.
    """

    in_flight: int = 0
    holding_kv: int = 0
    pauses_itself: bool = False
    full_coverage: bool = True
    chunk: bool = False
    mode: PauseMode = PauseMode.ABORT
    releases: frozenset[str] = frozenset()
    restored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A named predicate. ``passes`` false refuses the command with ``hint``."""

    name: str
    passes: Callable[[Facts, Situation], bool]
    hint: str
    error: type[CommandError] = IllegalCommand


NOTHING_HOLDS_KV = Guard(
    name="nothing_holds_kv",
    passes=lambda _facts, now: now.holding_kv == 0,
    hint="requests that hold KV are running or waiting; call pause_generation with mode "
    '"abort" or "retract" first, or retry when they have finished',
    error=InFlight,
)
WEIGHTS_RESIDENT = Guard(
    name="weights_resident",
    passes=lambda facts, _now: facts.weights.resident,
    hint='the weights are released; wake the tag "weights" first, then update',
)
WHOLE_OR_FULL = Guard(
    name="whole_or_full",
    passes=lambda facts, now: facts.weights is Weights.WHOLE or now.full_coverage or now.chunk,
    hint="the weights are not whole and this update covers only a part of them; send a full update",
)
IDLE_OR_PAUSES = Guard(
    name="idle_or_pauses",
    passes=lambda _facts, now: now.in_flight == 0 or now.pauses_itself,
    hint='requests are in flight; call pause_generation(mode="abort") first, '
    'or pass abort_all_requests=true (or pause_mode="retract" to keep them)',
    error=InFlight,
)
IDLE = replace(
    IDLE_OR_PAUSES,
    name="idle",
    passes=lambda _facts, now: now.in_flight == 0,
    hint='requests are in flight; call pause_generation(mode="abort") first, '
    "or retry when they have finished",
)
KV_FREE_OR_PAUSES = replace(
    NOTHING_HOLDS_KV,
    name="kv_free_or_pauses",
    passes=lambda _facts, now: now.holding_kv == 0 or now.pauses_itself,
)
GUARDS: tuple[Guard, ...] = (
    NOTHING_HOLDS_KV,
    WEIGHTS_RESIDENT,
    WHOLE_OR_FULL,
    IDLE_OR_PAUSES,
    IDLE,
    KV_FREE_OR_PAUSES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a legal command does to ``busy`` while it runs, and what it needs."""

    during: Activity = Activity.NOTHING
    guards: tuple[Guard, ...] = ()
    touches_weights: bool = False


RESTING: tuple[State, ...] = (State.SERVING, State.PAUSED, State.SLEEPING, State.INVALID)

_WRITES = Rule(during=Activity.UPDATING, touches_weights=True)
_UPDATE = replace(_WRITES, guards=(WEIGHTS_RESIDENT, WHOLE_OR_FULL))
_SWAP = replace(_WRITES, guards=(IDLE_OR_PAUSES,))
_SLEEP = replace(_WRITES, guards=(KV_FREE_OR_PAUSES,))
_RELABEL = Rule(during=Activity.UPDATING)
_RESET = replace(_WRITES, guards=(WEIGHTS_RESIDENT,))

TABLE: Mapping[tuple[State, Command], Rule] = {
    **{(state, Command.PAUSE): Rule() for state in RESTING},
    **{(state, Command.RESUME): Rule() for state in RESTING if state is not State.INVALID},
    **{
        (state, Command.FLUSH): Rule(during=Activity.FLUSHING, guards=(NOTHING_HOLDS_KV,))
        for state in RESTING
    },
    **{(state, Command.UPDATE): _UPDATE for state in (State.PAUSED, State.SLEEPING, State.INVALID)},
    (State.SERVING, Command.SWAP): _SWAP,
    **{(state, Command.SLEEP): _SLEEP for state in RESTING},
    (State.SERVING, Command.SLEEP): _SWAP,
    (State.SLEEPING, Command.WAKE): _WRITES,
    (State.SERVING, Command.RELABEL): _RELABEL,
    (State.PAUSED, Command.RELABEL): _RELABEL,
    (State.SERVING, Command.RESET): replace(_RESET, guards=(IDLE,)),
    **{(state, Command.RESET): _RESET for state in (State.PAUSED, State.SLEEPING, State.INVALID)},
}

_NEXT_STEP: Mapping[tuple[State, Command], str] = {
    (State.INVALID, Command.RESUME): "the weights are not whole; send a full update first",
    (State.SERVING, Command.UPDATE): "pause first, or ask for a swap",
    (State.SERVING, Command.WAKE): "nothing sleeps",
    (State.PAUSED, Command.WAKE): "nothing sleeps",
    (State.INVALID, Command.WAKE): "nothing sleeps; send a full update",
    (State.PAUSED, Command.SWAP): "generation is paused already; ask for an update",
    (State.INVALID, Command.SWAP): "ask for a full update",
    (State.SLEEPING, Command.SWAP): 'wake the tag "weights", then ask for an update',
    (State.INVALID, Command.RELABEL): "the weights are not whole, so there is nothing that a "
    "version could name; send a full update with its version",
    (State.SLEEPING, Command.RELABEL): "wake the server first, or send the version with an update",
}


def _after_done(facts: Facts, command: Command, now: Situation) -> Facts:
    match command:
        case Command.PAUSE:
            return replace(facts, gate=now.mode)
        case Command.RESUME:
            return replace(facts, gate=None)
        case Command.FLUSH | Command.RELABEL:
            return facts
        case Command.UPDATE | Command.SWAP | Command.RESET:
            return replace(facts, weights=_written(facts.weights, command, now))
        case Command.SLEEP:
            return replace(
                facts,
                weights=_released(facts.weights) if "weights" in now.releases else facts.weights,
                kv=Kv.RELEASED if "kv_cache" in now.releases else facts.kv,
            )
        case Command.WAKE:
            return _after_wake(facts, now)


def _written(weights: Weights, command: Command, now: Situation) -> Weights:
    if command is Command.RESET:
        return Weights.TORN
    # A chunk that others have to follow leaves them as whole or torn as they were.
    return weights if now.chunk and not now.full_coverage else Weights.WHOLE


def _released(weights: Weights) -> Weights:
    if not weights.resident:
        return weights
    return Weights.RELEASED if weights is Weights.WHOLE else Weights.RELEASED_TORN


def _after_wake(facts: Facts, now: Situation) -> Facts:
    weights = facts.weights
    if "weights" in now.releases and not weights.resident:
        back = Weights.WHOLE if weights is Weights.RELEASED else Weights.TORN
        weights = back if now.restored else Weights.NEVER_LOADED
    kv = Kv.RESIDENT if "kv_cache" in now.releases else facts.kv
    return replace(facts, weights=weights, kv=kv)


def after(facts: Facts, command: Command, outcome: Outcome, now: Situation) -> Facts:
    """Facts once ``command`` ended with ``outcome``; ``busy`` is always cleared."""
    rested = replace(facts, busy=Activity.NOTHING)
    if outcome is Outcome.DONE:
        return _after_done(rested, command, now)
    if outcome is Outcome.TORN:
        return replace(rested, weights=Weights.TORN)
    return rested


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of facts, as observers see it. ``outcome`` is None at a begin."""

    before: Facts
    after: Facts
    command: Command
    outcome: Outcome | None

    @property
    def states(self) -> tuple[State, State]:
        """The derived state before and after."""
        return state_of(self.before), state_of(self.after)


class Machine:
    """Holds the facts, and lets only the table change them."""

    def __init__(self, facts: Facts | None = None) -> None:
        self._facts = facts or Facts()
        self._running: tuple[Command, Rule] | None = None
        self._observers: list[Callable[[Change], None]] = []

    def __repr__(self) -> str:
        return f"<Machine {self.state} {self._facts}>"

    @property
    def facts(self) -> Facts:
        """The four facts now."""
        return self._facts

    @property
    def state(self) -> State:
        """The state, derived from the facts."""
        return state_of(self._facts)

    def observe(self, observer: Callable[[Change], None]) -> None:
        """Call ``observer`` after every change of facts, in the order of joining."""
        self._observers.append(observer)

    def check(self, command: Command, now: Situation) -> Rule:
        """Return the rule for ``command`` here. Raises: IllegalCommand, InFlight."""
        rule = TABLE.get((self.state, command))
        if rule is None:
            step = _NEXT_STEP.get((self.state, command), "wait until the state rests and retry")
            raise IllegalCommand(f"{command} is not legal while {self.state}: {step}")
        for guard in rule.guards:
            if not guard.passes(self._facts, now):
                raise guard.error(f"{command} refused while {self.state}: {guard.hint}")
        return rule

    def begin(self, command: Command, now: Situation) -> None:
        """Check and start ``command``. Raises: IllegalCommand, InFlight."""
        if self._running is not None:
            raise IllegalCommand(f"{command} asked for while {self._running[0]} runs")
        rule = self.check(command, now)
        self._running = (command, rule)
        self._set(replace(self._facts, busy=rule.during), command, None)

    def finish(self, outcome: Outcome, now: Situation) -> None:
        """End the running command. Raises: IllegalCommand when none runs, or when a
        command that does not touch weights claims to have torn them."""
        if self._running is None:
            raise IllegalCommand("finish without a begin")
        command, rule = self._running
        if outcome is Outcome.TORN and not rule.touches_weights:
            raise IllegalCommand(f"{command} does not touch weights and cannot tear them")
        self._running = None
        self._set(after(self._facts, command, outcome, now), command, outcome)

    def _set(self, facts: Facts, command: Command, outcome: Outcome | None) -> None:
        before, self._facts = self._facts, facts
        if before == facts and outcome is None:
            return
        change = Change(before=before, after=facts, command=command, outcome=outcome)
        for observer in self._observers:
            observer(change)
