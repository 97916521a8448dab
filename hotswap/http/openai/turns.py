"""Blocking work in a few threads of its own, for which nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.to_thread

from hotswap.errors import QueueFull

__all__ = ["Turns"]

T = TypeVar("T")


class Turns:
    """At most ``count`` calls at once; one that has no turn within ``wait_s`` is refused.

    The event loop's own worker threads are left to others. Event-loop thread.
    """

    def __init__(self, count: int, *, wait_s: float = 10.0) -> None:
        self._count = count
        self._wait_s = wait_s
        self._free = anyio.Semaphore(count)
        self._threads = anyio.CapacityLimiter(count)

    def __repr__(self) -> str:
        return f"<Turns {self._free.value} of {self._count} free>"

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, from a thread. Raises: what it raises, QueueFull."""
        await self._enter()
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            self._free.release()

    async def _enter(self) -> None:
        with suppress(anyio.WouldBlock):
            self._free.acquire_nowait()
            return
        with anyio.move_on_after(self._wait_s) as waiting:
            await self._free.acquire()
        if waiting.cancelled_caught:
            raise QueueFull(
                f"{self._count} chat templates are being rendered and none has ended for "
                f"{self._wait_s:g} s; retry later, or send the prompt to /v1/completions"
            )
