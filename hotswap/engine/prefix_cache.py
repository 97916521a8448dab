"""Keys and values of earlier texts, for texts that begin alike.

Rule: an entry belongs to the weight epoch that made all of it, and is found under
that epoch only. Entries are copies and so are hits: no request holds an entry.
Engine thread only, ``stats`` excepted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from hotswap.engine.kv import KvCache
from hotswap.engine.prefix_tree import Node, PrefixTree

__all__ = ["CacheStats", "PrefixCache"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts since the last flush, and what is held now."""

    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    entries: int = 0
    size_bytes: int = 0


class PrefixCache:
    """The most recently used texts, bounded in number and in bytes (None: not by this)."""

    def __init__(self, *, max_entries: int, max_bytes: int | None) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._trees: dict[int, PrefixTree] = {}
        # Least recently used first; the epoch of each.
        self._entries: OrderedDict[Node, int] = OrderedDict()
        self._size_bytes = self._size_tokens = 0
        self._hits = self._misses = self._hit_tokens = 0
        self._dropped = 0
        self.stats: CacheStats = CacheStats()

    def __repr__(self) -> str:
        return f"<PrefixCache {len(self._entries)} entries {self._size_bytes} bytes>"

    @property
    def size_tokens(self) -> int:
        """Tokens of all entries; a beginning that two share counts twice. Any thread."""
        return self._size_tokens

    def fill(self, kv: KvCache, tokens: Sequence[int], *, epoch: int) -> int:
        """Copy what is known of ``tokens`` under ``epoch`` into ``kv``, past what it has.

        ``kv`` holds the beginning of ``tokens`` already. Returns how many tokens were
        added.
        """
        self._dropped = 0
        tree = self._trees.get(epoch)
        length, node = (0, None) if tree is None else tree.longest(tokens)
        past = kv.length
        if node is None or node.kv is None or length <= past:
            return 0
        self._entries.move_to_end(node)
        kv.copy_from(node.kv, length)
        return length - past

    def count(self, cached: int) -> None:
        """A text began, with ``cached`` tokens that had been computed before."""
        self._hits += cached > 0
        self._misses += cached == 0
        self._hit_tokens += cached
        self._publish()

    def insert(self, kv: KvCache, tokens: Sequence[int], *, epoch: int) -> None:
        """Keep a copy of ``kv``, which holds ``tokens`` (as many as it is long)."""
        self._dropped = 0
        if not kv.length:
            return
        text = tokens[: kv.length]
        tree = self._trees.setdefault(epoch, PrefixTree())
        length, known = tree.longest(text)
        if known is not None and length == len(text):
            self._entries.move_to_end(known)
            return
        copy = kv.trimmed()
        node = tree.add(text, copy)
        self._entries[node] = epoch
        self._size_bytes += copy.size_bytes
        self._size_tokens += copy.length
        for shorter in tree.before(node):
            self._remove(shorter)
        self._shrink()
        self._publish()

    def shrink_to(self, tokens: int) -> None:
        """Drop the least recently used until no more than ``tokens`` are held."""
        if self._size_tokens <= tokens:
            return
        while self._entries and self._size_tokens > tokens:
            self._remove(next(iter(self._entries)))
        self._publish()

    def flush(self) -> int:
        """Drop everything and count anew; how many entries went.

        Those that :meth:`keep_only` has dropped count too, as long as the cache has
        not been used since: an update that flushes is one act to whoever asked for it.
        """
        count = len(self._entries) + self._dropped
        self._entries.clear()
        self._trees.clear()
        self._size_bytes = self._size_tokens = self._dropped = 0
        self._hits = self._misses = self._hit_tokens = 0
        self._publish()
        return count

    def keep_only(self, epoch: int) -> None:
        """Drop the entries of every other epoch: they could never match again."""
        for node in [node for node, made in self._entries.items() if made != epoch]:
            self._remove(node)
            self._dropped += 1
        for made in [made for made in self._trees if made != epoch]:
            del self._trees[made]
        self._publish()

    def _remove(self, node: Node) -> None:
        assert node.kv is not None, "only entries are removed"
        self._size_bytes -= node.kv.size_bytes
        self._size_tokens -= node.kv.length
        self._trees[self._entries.pop(node)].remove(node)

    def _shrink(self) -> None:
        while self._entries and (
            len(self._entries) > self._max_entries
            or (self._max_bytes is not None and self._size_bytes > self._max_bytes)
        ):
            self._remove(next(iter(self._entries)))

    def _publish(self) -> None:
        self.stats = CacheStats(
            hits=self._hits,
            misses=self._misses,
            hit_tokens=self._hit_tokens,
            entries=len(self._entries),
            size_bytes=self._size_bytes,
        )
