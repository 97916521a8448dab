"""What a request may take from texts computed before it, and leave to those after it.

Rule: keys and values pass from one text to another only if the live weights made all
of them, and no flush came after the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotswap.engine.kv import KvCache, KvShape
from hotswap.engine.prefix_cache import PrefixCache
from hotswap.engine.prefix_tree import common_length
from hotswap.engine.request import Holding, Request

__all__ = ["Reuse"]

# Two texts that differ in here are not worth a closer look.
_FIRST = 16


class Reuse:
    """The prefix cache, and the requests that run. Engine thread only."""

    def __init__(self, cache: PrefixCache, *, epoch: int) -> None:
        self._cache = cache
        self._epoch = epoch
        self._flushes = 0

    def __repr__(self) -> str:
        return f"<Reuse epoch {self._epoch} {self._cache!r}>"

    def begin(self, shape: KvShape) -> Holding:
        """Empty keys and values for a request that starts now."""
        return Holding(kv=KvCache(shape), epoch=self._epoch, flushes=self._flushes)

    def extend(self, request: Request, others: Iterable[Request]) -> None:
        """Let ``request`` skip what is known of its text beyond what it has computed.

        ``others`` are running; what they have computed so far serves as well as what
        is in the cache.
        """
        holding = request.holding
        assert holding is not None, "a waiting request has nothing to extend"
        if not holding.kv.length:
            # Nothing is in it yet that older weights could have made.
            holding.epoch, holding.flushes = self._epoch, self._flushes
        if not self._may_share(request):
            return
        past, kv = holding.kv.length, holding.kv
        wanted = request.tokens[: request.most_cached]
        if len(wanted) <= past:
            return
        self._cache.fill(kv, wanted, epoch=self._epoch)
        for other in others:
            if other is not request and other.holding is not None and self._may_share(other):
                length = _shared(wanted, other)
                if length > kv.length:
                    kv.copy_from(other.holding.kv, length)
        holding.cached += kv.length - past
        if not request.num_retractions:
            request.cached_tokens = holding.cached

    def count(self, request: Request) -> None:
        """What a request began with has been computed, or was known."""
        if request.reuse and request.holding is not None:
            self._cache.count(request.holding.cached)

    def remember(self, request: Request) -> None:
        """Offer what a request has computed to the prefix cache."""
        if request.holding is not None and self._may_share(request):
            self._cache.insert(request.holding.kv, request.tokens, epoch=self._epoch)

    def flush(self) -> int:
        """Empty the prefix cache; what runs now will not enter it either."""
        self._flushes += 1
        return self._cache.flush()

    def commit(self, epoch: int) -> None:
        """Nothing that was computed up to now is shared any more."""
        self._epoch = epoch
        self._cache.keep_only(epoch)

    def shrink_to(self, tokens: int) -> None:
        """Keep at most ``tokens`` in the prefix cache."""
        self._cache.shrink_to(tokens)

    @property
    def size_tokens(self) -> int:
        """Tokens in the prefix cache."""
        return self._cache.size_tokens

    def _may_share(self, request: Request) -> bool:
        holding = request.holding
        return (
            request.reuse
            and holding is not None
            and holding.epoch == self._epoch
            and holding.flushes == self._flushes
        )


def _shared(wanted: list[int], other: Request) -> int:
    """How many first tokens of ``wanted`` a running request has computed."""
    assert other.holding is not None, "only running requests have computed anything"
    if wanted[:_FIRST] != other.tokens[: min(_FIRST, len(wanted))]:
        return 0
    return common_length(wanted, other.tokens[: other.holding.kv.length])
