"""Applying a delta a piece at a time: what is in the processor's cache stays there.

Rule: pieces come in order and cover the tensor. An encoding is a class with ``apply`` and
``finish``, and says which words it changes: only those are written down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hotswap.stream.blobs import Delta
from hotswap.stream.encodings import Bytes, Encoding, overwrites, xor_change
from hotswap.stream.gap import Steps, decode_gap, steps_in_turn, steps_of
from hotswap.stream.gap_layout import Dense, Sparse
from hotswap.stream.gap_memory import GapMemory
from hotswap.stream.words import WORD_BYTES, Words
from hotswap.stream.xor_steps import XorSteps

__all__ = ["decoded", "decoded_whole", "piecewise", "untold"]


def piecewise(
    delta: Delta,
    length: int,
    *,
    among: int = 1,
    told: bool = True,
    memory: GapMemory | None = None,
) -> Steps:
    """``delta`` at the beginning of its tensor of ``length`` bytes, one of ``among`` at once.

    Without ``told`` nobody asks which words changed, and steps need not search for them.
    ``memory`` has what was decoded before.

    Raises: DeltaDamaged.
    """
    if delta.encoding is Encoding.XOR:
        return XorSteps(delta, length, among=among, told=told)
    if delta.encoding is Encoding.GAP:
        change = decoded(delta, length, memory)
        if isinstance(change, memoryview):
            return XorSteps(replace(delta, blob=change), length, among=among, told=told)
        return steps_of(change)
    return _Overwrite(delta, length)


def untold(
    deltas: Sequence[Delta], length: int, *, among: int, memory: GapMemory | None = None
) -> Iterator[Steps]:
    """As ``piecewise`` for each of ``deltas``, in their order, for who asks for no words.

    Raises: DeltaDamaged.
    """
    sparse = list[Sparse]()
    for delta in deltas:
        change = decoded(delta, length, memory) if delta.encoding is Encoding.GAP else None
        if isinstance(change, Sparse):
            sparse.append(change)
            continue
        yield from steps_in_turn(sparse)
        sparse.clear()
        yield piecewise(delta, length, among=among, told=False)
    yield from steps_in_turn(sparse)


def decoded(delta: Delta, length: int, memory: GapMemory | None) -> Sparse | memoryview:
    """What a ``gap`` delta changes, or the xor frame that it holds. Raises: DeltaDamaged."""
    known = None if memory is None else memory.get(delta.blob, length)
    if isinstance(known, Sparse):
        return known
    change = decode_gap(delta.blob, length, where=delta.where)
    if memory is not None and isinstance(change, Sparse):
        memory.keep(delta.blob, length, change)
    return change


def decoded_whole(delta: Delta, length: int, memory: GapMemory | None) -> Sparse | Dense:
    """As ``decoded``, for a tensor so short that all of a dense change may be at hand; ``delta``
    is ``gap`` or ``xor``. Raises: DeltaDamaged."""
    known = None if memory is None else memory.get(delta.blob, length, delta.encoding)
    if known is not None:
        return known
    change = _whole(delta, length)
    if memory is not None:
        memory.keep(delta.blob, length, change, delta.encoding)
    return change


def _whole(delta: Delta, length: int) -> Sparse | Dense:
    frame = delta.blob
    if delta.encoding is Encoding.GAP:
        change = decode_gap(delta.blob, length, where=delta.where)
        if isinstance(change, Sparse):
            return change
        frame = change
    return Dense(xor_change(frame, length, where=delta.where))


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
