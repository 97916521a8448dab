"""The consumer's end of a request: chunks cross from the engine's thread to the loop's.

Rule: a request whose consumer is too far behind stands still until half of what waits
has been read. So what waits is bounded, and whoever reads nothing stops nobody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

import anyio

from hotswap.seams import TokenChunk

__all__ = ["EmbeddedGeneration", "Outbox"]


class EmbeddedGeneration:
    """A request inside the engine; satisfies ``Generation``.

    Event-loop thread only, but for ``sent`` and ``stall``, which are the engine's.
    """

    def __init__(
        self,
        rid: str,
        *,
        loop: asyncio.AbstractEventLoop,
        abort: Callable[[], object],
        go_on: Callable[[], object],
        max_unread: int,
    ) -> None:
        """``go_on`` is called when a request that stands still may go on."""
        self.rid = rid
        self.loop = loop
        self._abort = abort
        self._go_on = go_on
        self._max_unread = max_unread
        # Each is written by one thread only.
        self._sent = self._read = 0
        self._is_stalled = False
        self._chunks: deque[TokenChunk] = deque()
        self._arrived = anyio.Event()
        self._is_over = False

    def __repr__(self) -> str:
        return f"<EmbeddedGeneration {self.rid} {'over' if self._is_over else 'open'}>"

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        """The next chunk. Cancelled: none is lost."""
        while not self._chunks:
            if self._is_over:
                raise StopAsyncIteration
            self._arrived = anyio.Event()
            await self._arrived.wait()
        chunk = self._chunks.popleft()
        self._read += 1
        if self._is_stalled and self._has_caught_up:
            self._is_stalled = False
            self._go_on()
        return chunk

    def abort(self) -> None:
        """Ask for the end; a no-op once it has come."""
        if not self._is_over:
            self._abort()

    @property
    def _has_caught_up(self) -> bool:
        return self._sent - self._read <= self._max_unread // 2

    def sent(self) -> bool:
        """Count a chunk that is on its way; whether there is room for another."""
        self._sent += 1
        return self._sent - self._read < self._max_unread

    def stall(self) -> bool:
        """The engine stands still until ``go_on``; false when that is not needed any more."""
        # In this order, as the consumer reads meanwhile: either it sees that the engine
        # stands still, or the engine sees what it has read.
        self._is_stalled = True
        if self._has_caught_up:
            self._is_stalled = False
        return self._is_stalled

    def deliver(self, chunk: TokenChunk) -> None:
        """Append a chunk. Nothing comes after one with a finish reason."""
        if self._is_over:
            return
        self._chunks.append(chunk)
        self._is_over = chunk.finish_reason is not None
        self._arrived.set()


class Outbox:
    """Chunks of one step, sent to each event loop in one call. Engine thread only."""

    def __init__(self) -> None:
        self._chunks: dict[asyncio.AbstractEventLoop, list[tuple[EmbeddedGeneration, TokenChunk]]]
        self._chunks = {}

    def put(self, generation: EmbeddedGeneration, chunk: TokenChunk) -> None:
        """Send with the next :meth:`flush`."""
        self._chunks.setdefault(generation.loop, []).append((generation, chunk))

    def flush(self) -> None:
        """Send everything that was put."""
        if not self._chunks:
            return
        chunks, self._chunks = self._chunks, {}
        for loop, batch in chunks.items():
            try:
                loop.call_soon_threadsafe(_deliver, batch)
            except RuntimeError:
                # The loop is closed: nobody is left who could read them.
                continue


def _deliver(batch: Iterable[tuple[EmbeddedGeneration, TokenChunk]]) -> None:
    for generation, chunk in batch:
        generation.deliver(chunk)
