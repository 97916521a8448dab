"""Short work on an engine that stands still, as one command.

Rule: before the work begins everything may be cancelled and nothing is changed. The
work, the facts and the resume then run to their end, whoever stops waiting for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from anyio.lowlevel import checkpoint_if_cancelled

from hotswap.command_queue import CommandQueue
from hotswap.counters import Counters
from hotswap.errors import CommandError
from hotswap.foreign import contained
from hotswap.reconcile import reconcile
from hotswap.seams import Engine
from hotswap.state import Command, Machine, Outcome, Situation, forward_allowed
from hotswap.types import PauseMode
from hotswap.uninterrupted import uninterrupted
from hotswap.write_window import WriteWindow

__all__ = ["StoppedWork"]

T = TypeVar("T")


class StoppedWork:
    """Runs such commands on one engine, each in its turn. Event-loop thread only."""

    def __init__(
        self,
        engine: Engine,
        *,
        machine: Machine,
        queue: CommandQueue,
        counters: Counters,
        window: WriteWindow,
    ) -> None:
        self.engine = engine
        self.machine = machine
        self.queue = queue
        self.counters = counters
        self._window = window

    def __repr__(self) -> str:
        return f"<StoppedWork {self.machine.state}>"

    async def run(
        self,
        command: Command,
        work: Callable[[], Awaitable[T]],
        *,
        mode: PauseMode,
        failed: Outcome,
    ) -> tuple[T, int]:
        """Stop the engine, run ``work``, let the engine go on if the facts allow it.

        ``mode`` is how requests in flight are met, ``failed`` the outcome when ``work``
        raises. Returns what the work returned, and how many requests were aborted.

        Raises: IllegalCommand, InFlight, Busy, what the engine or ``work`` raised.
        """
        with self.counters.counted(command), await self.queue.enter(command):
            return await self.run_in_turn(command, work, mode=mode, failed=failed)

    async def run_in_turn(
        self,
        command: Command,
        work: Callable[[], Awaitable[T]],
        *,
        mode: PauseMode,
        failed: Outcome,
        asked: Situation | None = None,
        done: Callable[[T, Situation], Situation] = lambda _result, now: now,
    ) -> tuple[T, int]:
        """The same for who holds the queue's entry, and counts. ``asked`` is what guards and
        outcomes look at besides requests in flight, ``done`` adds what the work found out."""
        runs = forward_allowed(self.machine.facts)
        in_flight = self.engine.in_flight
        now = replace(
            asked or Situation(), in_flight=in_flight.total, holding_kv=in_flight.holding_kv
        )
        self.machine.begin(command, now)
        aborted = 0
        try:
            # Requests that stand still already need no stop, but may have to let go or end.
            if runs or mode.strength > PauseMode.IN_PLACE.strength:
                with contained("the engine"):
                    aborted = (await self.engine.pause(mode)).num_aborted
            await checkpoint_if_cancelled()
        except BaseException:
            await uninterrupted(self._settle(Outcome.UNDONE, now))
            raise
        return await uninterrupted(self._to_the_end(work, failed, now, done)), aborted

    async def _to_the_end(
        self,
        work: Callable[[], Awaitable[T]],
        failed: Outcome,
        now: Situation,
        done: Callable[[T, Situation], Situation],
    ) -> T:
        outcome = failed
        try:
            with self._window.open(), contained("the engine"):
                result = await work()
            outcome, now = Outcome.DONE, done(result, now)
        except CommandError:
            # The engine has refused before it did anything.
            outcome = Outcome.UNDONE
            raise
        finally:
            await self._settle(outcome, now)
        return result

    async def _settle(self, outcome: Outcome, now: Situation) -> None:
        self.machine.finish(outcome, now)
        await reconcile(self.engine, self.machine)
