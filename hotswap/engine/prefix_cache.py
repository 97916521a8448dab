"""Keys and values of finished texts, for texts that begin alike.

Rule: an entry belongs to the weight epoch that made all of it, and is found under
that epoch only. Entries are copies and so are hits: no request holds an entry.
Engine thread only, ``stats`` excepted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from hotswap.engine.kv import KvCache

__all__ = ["CacheStats", "PrefixCache", "common_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts since the last flush, and what is held now."""

    hits: int = 0
    misses: int = 0
    entries: int = 0
    size_bytes: int = 0


class PrefixCache:
    """The most recently used texts, bounded in number and in bytes."""

    def __init__(self, *, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[int, tuple[int, ...]], KvCache] = OrderedDict()
        self._size_bytes = 0
        self._hits = self._misses = 0
        self._dropped = 0
        self.stats = CacheStats()

    def __repr__(self) -> str:
        return f"<PrefixCache {len(self._entries)} entries {self._size_bytes} bytes>"

    def fill(self, kv: KvCache, tokens: Sequence[int], *, epoch: int) -> int:
        """Copy the longest prefix of ``tokens`` that is known under ``epoch`` into ``kv``.

        Returns its length, at most one less than ``tokens`` has: the last one must
        run for there to be logits.
        """
        self._dropped = 0
        wanted = tuple(tokens[:-1])
        best, length = None, 0
        for key in self._entries:
            shared = common_length(key[1], wanted) if key[0] == epoch else 0
            if shared > length:
                best, length = key, shared
        if best is None:
            self._misses += 1
        else:
            self._hits += 1
            self._entries.move_to_end(best)
            kv.copy_from(self._entries[best], length)
        self._publish()
        return length

    def insert(self, kv: KvCache, tokens: Sequence[int], *, epoch: int) -> None:
        """Keep a copy of ``kv``, which holds ``tokens`` (as many as it is long)."""
        self._dropped = 0
        key = (epoch, tuple(tokens[: kv.length]))
        for known in list(self._entries):
            if known[0] != epoch:
                continue
            shared = common_length(known[1], key[1])
            if shared == len(key[1]):
                self._entries.move_to_end(known)
                return
            if shared == len(known[1]):
                self._remove(known)
        copy = kv.trimmed()
        self._entries[key] = copy
        self._size_bytes += copy.size_bytes
        self._shrink()
        self._publish()

    def flush(self) -> int:
        """Drop everything and count anew; how many entries went.

        Those that :meth:`keep_only` has dropped count too, as long as the cache has
        not been used since: an update that flushes is one act to whoever asked for it.
        """
        count = len(self._entries) + self._dropped
        self._entries.clear()
        self._size_bytes = self._hits = self._misses = self._dropped = 0
        self._publish()
        return count

    def keep_only(self, epoch: int) -> None:
        """Drop the entries of every other epoch: they could never match again."""
        for key in [key for key in self._entries if key[0] != epoch]:
            self._remove(key)
            self._dropped += 1
        self._publish()

    def _remove(self, key: tuple[int, tuple[int, ...]]) -> None:
        self._size_bytes -= self._entries.pop(key).size_bytes

    def _shrink(self) -> None:
        while self._entries and (
            len(self._entries) > self._max_entries or self._size_bytes > self._max_bytes
        ):
            self._remove(next(iter(self._entries)))

    def _publish(self) -> None:
        self.stats = CacheStats(
            hits=self._hits,
            misses=self._misses,
            entries=len(self._entries),
            size_bytes=self._size_bytes,
        )


def common_length(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """How many first items are the same. Slices compare in C: halve, do not walk."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
