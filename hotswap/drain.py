"""One pause that waits for the engine to stop, and everybody who wished for it.

Rule: the drain runs in a task of its own. It goes on while anybody waits for it;
the last one to leave gives it up. A stronger mode joins it, a resume ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import anyio

from hotswap.errors import CommandError, Overtaken, ShuttingDown
from hotswap.foreign import contained
from hotswap.seams import Engine
from hotswap.types import PauseMode

__all__ = ["Drain", "PauseReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseReport:
    """What a pause did: the mode in force, and how many requests it ended."""

    mode: PauseMode
    num_aborted: int


class Drain:
    """A pause on its way. Event-loop thread only."""

    def __init__(self, mode: PauseMode) -> None:
        self.mode: PauseMode = mode
        self.num_aborted: int = 0
        self._waiting = 0
        self._overtaken_by: str | None = None
        self._given_up = False
        self._dropped = False
        self._attempt = anyio.CancelScope()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Drain {self.mode} waiting={self._waiting}>"

    @property
    def abandoned(self) -> bool:
        """Whether the pause shall not take place any more."""
        return self._given_up or self._overtaken_by is not None

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``work``, which calls :meth:`stop`, in the drain's own task."""
        self._task = asyncio.get_running_loop().create_task(work())
        # Whoever waits raises it; once nobody waits it is nobody's, and no accident.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def stop(self, engine: Engine, *, at_least: PauseMode) -> None:
        """Pause the engine, with a stronger mode as soon as one is asked for.

        Raises: Overtaken or ShuttingDown when the drain was ended or nobody waits for it
        any more, and then the pause shall not take place even if the engine stopped.
        """
        while not self.abandoned:
            asked = self.mode
            applied = max(asked, at_least, key=lambda mode: mode.strength)
            with self._attempt, contained("the engine"):
                pause = await engine.pause(applied)
                self.num_aborted += pause.num_aborted
                if self.mode is asked and not self.abandoned:
                    return
            self._attempt = anyio.CancelScope()
        raise self._overtaken()

    def strengthen(self, mode: PauseMode) -> None:
        """Apply ``mode`` instead of the weaker one."""
        self.mode = mode
        self._attempt.cancel()

    def overtake(self, by: str) -> None:
        """End the drain; those who wait for it get Overtaken."""
        self._overtaken_by = by
        self._attempt.cancel()

    def drop(self) -> None:
        """End the drain for a shutdown; those who wait for it get ShuttingDown."""
        self._dropped = True
        self.overtake("the shutdown")

    async def join(self) -> None:
        """Wait for the end. A caller cancelled here leaves; the last one ends the drain.

        Raises: Overtaken, ShuttingDown, or what the engine raised.
        """
        assert self._task is not None, "join before start"
        self._waiting += 1
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            if self._waiting == 1:
                self._given_up = True
                self._attempt.cancel()
                await self._undone(self._task)
            raise
        finally:
            self._waiting -= 1
        if self._overtaken_by is not None:
            raise self._overtaken()
        self._task.result()

    async def _undone(self, task: asyncio.Task[None]) -> None:
        """Wait for the end of a given-up drain, whatever else is cancelled meanwhile."""
        with anyio.CancelScope(shield=True):
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError:
                    continue

    def _overtaken(self) -> CommandError:
        if self._dropped:
            return ShuttingDown(
                f"pause({self.mode}) was still draining when the server was told to shut down; "
                "nothing is generated there any more"
            )
        by = self._overtaken_by or "nobody, all who waited for it having left"
        return Overtaken(
            f"pause({self.mode}) was still draining and was overtaken by {by}; "
            "pause again if generation shall stop"
        )
