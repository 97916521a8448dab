"""Applying a delta a piece at a time: what is in the processor's cache stays there.

Rule: pieces come in order and cover the tensor. An encoding is a class with ``apply`` and
``finish``, and says which words it changes: only those are written down.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hotswap.stream.blobs import Delta
from hotswap.stream.encodings import Bytes, Encoding, overwrites
from hotswap.stream.gap import Steps, decode_gap, steps_of
from hotswap.stream.words import WORD_BYTES, Words
from hotswap.stream.xor_steps import XorSteps

__all__ = ["piecewise"]


def piecewise(delta: Delta, length: int, *, among: int = 1) -> Steps:
    """``delta`` at the beginning of its tensor of ``length`` bytes, one of ``among`` at once.

    Raises: DeltaDamaged.
    """
    if delta.encoding is Encoding.XOR:
        return XorSteps(delta, length, among=among)
    if delta.encoding is Encoding.GAP:
        change = decode_gap(delta.blob, length, where=delta.where)
        if isinstance(change, memoryview):
            return XorSteps(replace(delta, blob=change), length, among=among)
        return steps_of(change)
    return _Overwrite(delta, length)


class _Overwrite:
    def __init__(self, delta: Delta, length: int) -> None:
        positions, self._values = overwrites(delta.blob, length, where=delta.where)
        self._positions = positions.astype(np.intp)  # else each search converts all of them
        self._at = 0

    def __repr__(self) -> str:
        return f"<_Overwrite at byte {self._at}>"

    def apply(self, piece: Bytes) -> Words:
        end = self._at + len(piece)
        first, last = np.searchsorted(self._positions, (self._at, end))
        positions = self._positions[first:last] - self._at
        piece[positions] = self._values[first:last]
        self._at = end
        words: Words = positions // WORD_BYTES
        first_of_each: Words = words[np.diff(words, prepend=-1) != 0]
        return first_of_each

    def finish(self) -> None:
        """Positions were checked against the length at the beginning."""
