"""Decoded ``gap`` deltas that will be applied again: those of logs, by each pull and each update.

Rule: a blob is known by its bytes. What a disk does to a file is seen as if nothing was kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TypeAlias

import xxhash

from hotswap.stream.gap_layout import Dense, Sparse

__all__ = ["LOGGED", "GapMemory"]

_USUAL_BYTES = 2**28
"""At 1 % of a model of bf16, what 8 versions of 1 GiB of it take, and half as much again."""

_Key: TypeAlias = tuple[str, int, bytes]


class GapMemory:
    """Holds at most ``limit_bytes`` of decoded deltas; what was not asked for longest goes first.

    Any thread.
    """

    def __init__(self, limit_bytes: int = _USUAL_BYTES) -> None:
        self.limit_bytes: int = limit_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, Sparse | Dense] = OrderedDict()
        self._size_bytes = 0

    def __repr__(self) -> str:
        return f"<GapMemory {len(self._kept)} deltas, {self._size_bytes} of {self.limit_bytes} B>"

    @property
    def size_bytes(self) -> int:
        """What is held."""
        return self._size_bytes

    def get(self, blob: memoryview, length: int, encoding: str = "gap") -> Sparse | Dense | None:
        """What ``blob``, of ``encoding``, changes in a tensor of ``length`` bytes, if that is
        known."""
        key = _key(blob, length, encoding)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(
        self, blob: memoryview, length: int, change: Sparse | Dense, encoding: str = "gap"
    ) -> None:
        """Know that next time."""
        key = _key(blob, length, encoding)
        with self._lock:
            if key in self._kept or change.size_bytes > self.limit_bytes:
                return
            self._kept[key] = change
            self._size_bytes += change.size_bytes
            while self._size_bytes > self.limit_bytes:
                _, oldest = self._kept.popitem(last=False)
                self._size_bytes -= oldest.size_bytes

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
            self._size_bytes = 0


def _key(blob: memoryview, length: int, encoding: str) -> _Key:
    return encoding, length, xxhash.xxh3_128_digest(blob)


LOGGED = GapMemory()
"""Of the logs that this process appends to and reads."""
