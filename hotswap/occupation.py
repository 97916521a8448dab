"""Let memory go and take it again: the commands ``sleep`` and ``wake``.

Rules:

* Asking twice is asking once: what sleeps already, or is awake, is left as it is.
* Weights that were let go come back without their values, unless the engine has kept them:
  they are not whole, and a full update makes them so.
* Weights that a session is about to replace stay: nothing else changes them meanwhile.
* The gate stays where the client has it. While anything sleeps nothing is generated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from hotswap.errors import CommandError, IllegalCommand
from hotswap.foreign import words_of
from hotswap.seams import Sleeper
from hotswap.state import Command, Kv, Outcome, Situation
from hotswap.stopped import StoppedWork
from hotswap.types import PauseMode

__all__ = ["TAGS", "MemoryMoved", "Occupation"]

TAGS = frozenset({"weights", "kv_cache"})
"""What can be let go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMoved:
    """What one command did: the tags that were moved, those that sleep now, and how many
    requests it aborted."""

    moved: frozenset[str]
    asleep: frozenset[str]
    num_aborted: int = 0


class Occupation:
    """Runs both commands on one engine, each in its turn. Event-loop thread only."""

    def __init__(self, stopped: StoppedWork, *, refuse: Callable[[], None] = lambda: None) -> None:
        """``refuse`` raises Busy while the weights are not to be touched."""
        self._stopped = stopped
        self._refuse = refuse

    def __repr__(self) -> str:
        return f"<Occupation asleep={sorted(self.asleep)}>"

    @property
    def asleep(self) -> frozenset[str]:
        """The tags whose memory is let go."""
        facts = self._stopped.machine.facts
        weights = set() if facts.weights.resident else {"weights"}
        return frozenset(weights | ({"kv_cache"} if facts.kv is Kv.RELEASED else set()))

    async def sleep(
        self, tags: frozenset[str] = TAGS, *, pause_mode: PauseMode | None = None
    ) -> MemoryMoved:
        """Let go of the memory of ``tags``, of which :data:`TAGS` has all.

        ``pause_mode`` None refuses beside requests that run or hold keys and values; ``abort``
        ends them, ``retract`` keeps them parked. Cancelled before it begins it does nothing.

        Raises: IllegalCommand (an engine that cannot), InFlight, Busy, what the engine raised;
        ValueError for another mode.
        """
        if pause_mode not in (None, PauseMode.ABORT, PauseMode.RETRACT):
            raise ValueError(
                f"pause_mode is {pause_mode}, wanted abort or retract: requests that keep their "
                "keys and values, or wait to end, keep the memory too"
            )
        stopped, engine = self._stopped, self._sleeper()
        with stopped.counters.counted(Command.SLEEP), await stopped.queue.enter(Command.SLEEP):
            fresh = (tags & TAGS) - self.asleep
            if not fresh:
                return MemoryMoved(moved=fresh, asleep=self.asleep)
            if "weights" in fresh:
                self._refuse()
            _, aborted = await stopped.run_in_turn(
                Command.SLEEP,
                partial(engine.sleep, fresh),
                mode=pause_mode or PauseMode.IN_PLACE,
                failed=Outcome.TORN if "weights" in fresh else Outcome.UNDONE,
                asked=Situation(releases=fresh, pauses_itself=pause_mode is not None),
            )
            return MemoryMoved(moved=fresh, asleep=self.asleep, num_aborted=aborted)

    async def wake(self, tags: frozenset[str] = TAGS) -> MemoryMoved:
        """Take the memory of ``tags`` again. Weights are then not whole.

        Raises: IllegalCommand (an engine that cannot), Busy, CommandError (no memory, and all
        sleeps on), what the engine raised.
        """
        stopped, engine = self._stopped, self._sleeper()
        with stopped.counters.counted(Command.WAKE), await stopped.queue.enter(Command.WAKE):
            asleep = tags & self.asleep
            if asleep:
                await stopped.run_in_turn(
                    Command.WAKE,
                    partial(_woken, engine, asleep),
                    mode=PauseMode.IN_PLACE,
                    failed=Outcome.UNDONE,
                    asked=Situation(releases=asleep),
                    done=lambda kept, now: replace(now, restored=kept),
                )
            return MemoryMoved(moved=asleep, asleep=self.asleep)

    def _sleeper(self) -> Sleeper:
        engine = self._stopped.engine
        if isinstance(engine, Sleeper):
            return engine
        raise IllegalCommand(
            "this engine cannot give memory back, so nothing was released; end the server "
            "where the memory is needed"
        )


async def _woken(engine: Sleeper, tags: frozenset[str]) -> bool:
    try:
        return await engine.wake(tags)
    except MemoryError as error:
        raise CommandError(f"{', '.join(sorted(tags))} sleep on: {words_of(error)}") from error
