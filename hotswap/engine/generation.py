"""The consumer's end of a request: chunks cross from the engine's thread to the loop's."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

import anyio

from hotswap.seams import TokenChunk

__all__ = ["EmbeddedGeneration", "Outbox"]


class EmbeddedGeneration:
    """A request inside the engine; satisfies ``Generation``. Event-loop thread only.

    Chunks wait here as long as nobody reads them; ``max_new_tokens`` bounds them.
    """

    def __init__(
        self, rid: str, *, loop: asyncio.AbstractEventLoop, abort: Callable[[], object]
    ) -> None:
        self.rid = rid
        self.loop = loop
        self._abort = abort
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
        return self._chunks.popleft()

    def abort(self) -> None:
        """Ask for the end; a no-op once it has come."""
        if not self._is_over:
            self._abort()

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
