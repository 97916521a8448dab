"""The turns of a follower, for those who wait for one to be over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

__all__ = ["Turns"]


class Turns:
    """Counts turns; one runs at a time. Event-loop thread only."""

    def __init__(self) -> None:
        self.begun: int = 0
        self.ended: int = 0
        self._next_end = anyio.Event()

    def __repr__(self) -> str:
        return f"<Turns {self.ended} ended, {self.begun - self.ended} running>"

    @contextmanager
    def one(self) -> Iterator[None]:
        """The body is a turn, however it ends."""
        self.begun += 1
        try:
            yield
        finally:
            self.ended = self.begun
            self._next_end.set()
            self._next_end = anyio.Event()

    async def until(self, number: int) -> None:
        """Return once the turn ``number`` (counting from 1) has ended."""
        while self.ended < number:
            await self._next_end.wait()
