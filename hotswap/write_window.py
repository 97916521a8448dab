"""When live weights are being written, for those who would read them.

Rule: between the return of :meth:`WriteWindow.closed` and the call that has the engine
read there is no ``await``. Both run on the event loop's one thread, and an engine reads
and writes in the order in which it was asked: a write that begins later comes after
the whole read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from hotswap.errors import Busy

__all__ = ["WriteWindow"]


class WriteWindow:
    """Open from the first write of a command to its last. Event-loop thread only."""

    def __init__(self, *, wait_s: float) -> None:
        """``wait_s`` bounds how long a read waits."""
        self._wait_s = wait_s
        self._open = 0
        self._waiting = 0
        self._shut = anyio.Event()

    def __repr__(self) -> str:
        return f"<WriteWindow {'open' if self._open else 'closed'} waiting={self._waiting}>"

    @property
    def waiting(self) -> int:
        """How many reads wait."""
        return self._waiting

    @contextmanager
    def open(self) -> Iterator[None]:
        """Weights are being written in the body: what is live may be half old, half new."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._shut.set()
                self._shut = anyio.Event()

    async def closed(self) -> None:
        """Return once nothing is being written; at once when nothing is. Raises: Busy."""
        self._waiting += 1
        try:
            with anyio.move_on_after(self._wait_s):
                while self._open:
                    await self._shut.wait()
                return
        finally:
            self._waiting -= 1
        raise Busy(
            f"the weights have been written for {self._wait_s:g} s and are half old, half new "
            "until that has ended; retry then"
        )
