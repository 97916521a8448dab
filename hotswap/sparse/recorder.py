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

    Of each tensor ``begin``, ``note`` and ``end`` are called by the thread that changes it: what
    was noted is put together there, beside what the others do, and not when all is over.
    """

    def __init__(self, cache: PatchCache, before: Origin) -> None:
        self._cache = cache
        self._before = before
        self._lock = threading.Lock()
        self._room = cache.limit_bytes
        self._notes: dict[str, tuple[int, list[_Note]]] = {}
        self._tensors: dict[str, TensorPatch] = {}

    def __repr__(self) -> str:
        return f"<Recorder on {self._before} {len(self._tensors)} tensors>"

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
                self._tensors.clear()
                return
        numbers = words.astype(np.uint32)
        numbers += np.uint32(at // _WORD_BYTES)
        note = at, numbers, np.array(values, np.uint64)
        with self._lock:
            if name in self._notes:
                self._notes[name][1].append(note)

    def end(self, name: str) -> None:
        """Tensor ``name`` is as it was noted."""
        with self._lock:
            noted = self._notes.pop(name, None)
        if noted is None:
            return
        length_bytes, notes = noted
        patch = _joined(length_bytes, sorted(notes, key=lambda note: note[0]))
        with self._lock:
            if self._room >= 0:
                self._tensors[name] = patch

    def keep(self, after: Origin) -> None:
        """The pull is done, and left ``after``. Nothing is kept while a tensor has not ended."""
        if self._room >= 0 and not self._notes:
            self._cache.keep(Patch(before=self._before, after=after, tensors=self._tensors))


def _joined(length_bytes: int, notes: list[_Note]) -> TensorPatch:
    if len(notes) == 1:
        _, words, values = notes[0]
    else:
        words = np.concatenate([np.empty(0, np.uint32), *(note[1] for note in notes)])
        values = np.concatenate([np.empty(0, np.uint64), *(note[2] for note in notes)])
    return TensorPatch(words=words, values=values, length_bytes=length_bytes)
