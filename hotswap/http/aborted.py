"""A request that was aborted before the engine had it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from hotswap.seams import TokenChunk
from hotswap.types import WeightStamp

__all__ = ["AbortedGeneration"]


class AbortedGeneration:
    """Satisfies ``Generation``: its first chunk is its last, and says ``abort``."""

    def __init__(self, stamp: WeightStamp) -> None:
        self._left = [TokenChunk(token_id=None, stamp=stamp, finish_reason="abort")]

    def __repr__(self) -> str:
        return "<AbortedGeneration>"

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        """The only chunk, once."""
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()

    def abort(self) -> None:
        """A no-op."""
