"""How many tokens of keys and values fit, and who has to go when they do not.

Rules:

* Running requests come first, the oldest of them before all; cached prefixes have what
  is left.
* A request needs room for its text so far and one token more: it starts when there is
  as much, and what it puts out after that may take the room of a younger one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hotswap.engine.kv import KvCache
from hotswap.engine.request import Request

__all__ = ["KvRoom"]


class KvRoom:
    """Counts in whole blocks. Engine thread only, ``total`` and ``used`` excepted."""

    def __init__(self, total_tokens: int) -> None:
        """Raises: ValueError for less than one block."""
        self.total: int = total_tokens // KvCache.BLOCK * KvCache.BLOCK
        self.used: int = 0
        if not self.total:
            raise ValueError(
                f"there is room for the keys and values of {total_tokens} tokens, wanted at "
                f"least {KvCache.BLOCK}; raise max_total_tokens or mem_fraction_static"
            )

    def __repr__(self) -> str:
        return f"<KvRoom {self.used} of {self.total} tokens>"

    def free(self, running: Iterable[Request]) -> int:
        """Tokens that nobody who runs needs; negative when they have outgrown the room."""
        return self.total - sum(_needed(request) for request in running)

    def count(self, running: Iterable[Request], *, cached: int) -> None:
        """Bring ``used`` up to date; ``cached`` are the tokens of the prefix cache."""
        self.used = sum(request.kv.capacity for request in running) + cached

    def has_room(self, running: Sequence[Request], newcomer: Request) -> bool:
        """Whether ``newcomer`` may start beside ``running``; alone it always may."""
        return not running or self.free(running) >= _text(newcomer)


def _needed(request: Request) -> int:
    return max(request.kv.capacity, _text(request))


def _text(request: Request) -> int:
    return KvCache.rounded(len(request.tokens) + 1)
