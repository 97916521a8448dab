"""Short work on an engine that stands still, as one command.

Rule: before the work begins everything may be cancelled and nothing is changed. The
work, the facts and the resume then run to their end, whoever stops waiting for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from anyio.lowlevel import checkpoint_if_cancelled

from hotswap.command_queue import CommandQueue
from hotswap.counters import Counters
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
        self._engine = engine
        self._machine = machine
        self._queue = queue
        self._counters = counters
        self._window = window

    def __repr__(self) -> str:
        return f"<StoppedWork {self._machine.state}>"

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
        with self._counters.counted(command), await self._queue.enter(command):
            runs = forward_allowed(self._machine.facts)
            in_flight = self._engine.in_flight
            now = Situation(in_flight=in_flight.total, holding_kv=in_flight.holding_kv)
            self._machine.begin(command, now)
            aborted = 0
            try:
                # Requests that stand still already need no stop, but may have to end.
                if runs or mode is PauseMode.ABORT:
                    aborted = (await self._engine.pause(mode)).num_aborted
                await checkpoint_if_cancelled()
            except BaseException:
                await uninterrupted(self._settle(Outcome.UNDONE, now))
                raise
            return await uninterrupted(self._to_the_end(work, failed, now)), aborted

    async def _to_the_end(
        self, work: Callable[[], Awaitable[T]], failed: Outcome, now: Situation
    ) -> T:
        outcome = failed
        try:
            with self._window.open():
                result = await work()
            outcome = Outcome.DONE
        finally:
            await self._settle(outcome, now)
        return result

    async def _settle(self, outcome: Outcome, now: Situation) -> None:
        self._machine.finish(outcome, now)
        await reconcile(self._engine, self._machine)
