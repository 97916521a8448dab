"""Takes down what a pull changes, while it does."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from hotswap.sparse.cache import PatchCache
from hotswap.sparse.origin import Origin
from hotswap.sparse.patch import Patch, TensorPatch

__all__ = ["Recorder"]

_WORD_BYTES = 8
_NUMBER_BYTES = 4
_MOST_WORDS = 2**32

_Note = tuple[int, NDArray[np.uint32], NDArray[np.uint64]]


class Recorder:
    """What one pull changes, for ``cache``; nothing, once it is more than may be kept.

    ``note`` is for any thread; the rest for the one that pulls.
    """

    def __init__(self, cache: PatchCache, before: Origin) -> None:
        self._cache = cache
        self._before = before
        self._lock = threading.Lock()
        self._room = cache.limit_bytes
        self._notes: dict[str, tuple[int, list[_Note]]] = {}

    def __repr__(self) -> str:
        return f"<Recorder on {self._before} {len(self._notes)} tensors>"

    def begin(self, name: str, length_bytes: int) -> None:
        """Parts of tensor ``name`` follow, or none; those that were noted before do not count."""
        with self._lock:
            if self._room >= 0:
                self._notes[name] = (length_bytes, [])
            if length_bytes > _MOST_WORDS * _WORD_BYTES:
                self._room = -1

    def note(self, name: str, at: int, words: NDArray[np.intp], values: NDArray[np.uint64]) -> None:
        """From byte ``at`` of the tensor on (a whole number of words), ``words`` are ``values``.

        ``words`` ascend; both are copied.
        """
        with self._lock:
            self._room -= len(words) * (_WORD_BYTES + _NUMBER_BYTES)
            if self._room < 0:
                self._notes.clear()
                return
        numbers = words.astype(np.uint32)
        numbers += np.uint32(at // _WORD_BYTES)
        note = at, numbers, np.array(values, np.uint64)
        with self._lock:
            if name in self._notes:
                self._notes[name][1].append(note)

    def keep(self, after: Origin) -> None:
        """The pull is done, and left ``after``."""
        if self._room < 0:
            return
        tensors = {
            name: _joined(length_bytes, sorted(notes, key=lambda note: note[0]))
            for name, (length_bytes, notes) in self._notes.items()
        }
        self._cache.keep(Patch(before=self._before, after=after, tensors=tensors))


def _joined(length_bytes: int, notes: list[_Note]) -> TensorPatch:
    empty = np.empty(0, np.uint32), np.empty(0, np.uint64)
    return TensorPatch(
        words=np.concatenate([words for _, words, _ in notes]) if notes else empty[0],
        values=np.concatenate([values for _, _, values in notes]) if notes else empty[1],
        length_bytes=length_bytes,
    )
