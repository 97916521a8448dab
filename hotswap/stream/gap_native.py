"""The loops of ``gap_kernels``, compiled: ``pip install 'hotswap[native]'``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotswap.native import compiled as _compiled
from hotswap.native import has_native
from hotswap.stream import gap_kernels
from hotswap.stream.frames import Bytes
from hotswap.stream.gap_layout import Sparse, escape_of
from hotswap.stream.words import WORD_BYTES, Words, whole_words

__all__ = ["NativeSteps", "NativeTurns", "has_native"]


class NativeTurns:
    """Changes of elements of one width, one after the other; of words nothing is told.

    One call a piece: with one for each change, threads would wait for the interpreter's lock
    longer than the calls take. Pieces are of whole elements.
    """

    def __init__(self, changes: Sequence[Sparse]) -> None:
        """Raises: ValueError for changes of several widths."""
        (self._width,) = {change.head.width for change in changes}
        symbols = [change.symbols for change in changes]
        values = [change.values for change in changes]
        self._room = _rooms().pop() if _rooms() else _Joined()
        self._symbols, self._values = self._room.symbols(symbols), self._room.values(values)
        ends = list(accumulate(map(len, symbols)))
        self._ends = np.array(ends)
        self._escapes = np.array([escape_of(change.head.gap_width) for change in changes])
        self._places = np.zeros((len(changes), 3), np.int64)
        self._places[1:, 0] = ends[:-1]
        self._places[1:, 1] = list(accumulate(map(len, values)))[:-1]
        self._begin = 0

    def __repr__(self) -> str:
        return f"<NativeTurns of {len(self._ends)} at byte {self._begin}>"

    def apply(self, piece: Bytes) -> Words:
        """Turn the next ``piece`` from old bytes into new ones."""
        begin, self._begin = self._begin, self._begin + len(piece)
        elements = piece.view(f"<u{self._width}")
        _compiled(gap_kernels.change_in_turn)(*self.arguments, elements, begin // self._width)
        return _NONE

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What a compiled loop is given of them: it moves them on."""
        return self._symbols, self._values, self._ends, self._escapes, self._places

    def finish(self) -> None:
        """Everything was checked at the beginning."""
        _rooms().append(self._room)


class _Joined:
    """Room for several arrays as one: fresh memory costs more than what is done with it."""

    def __init__(self) -> None:
        self._symbols, self._values = np.empty(0, np.uint8), np.empty(0, np.uint8)

    def symbols(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """All of them, until they are asked for again."""
        joined, self._symbols = _join(arrays, self._symbols)
        return joined

    def values(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """As ``symbols``."""
        joined, self._values = _join(arrays, self._values)
        return joined


def _join(arrays: Sequence[NDArray[Any]], room: Bytes) -> tuple[Any, Bytes]:
    if len(arrays) == 1:
        return _fixed(arrays[0]), room
    dtype = np.result_type(*arrays)
    size = sum(map(len, arrays)) * dtype.itemsize
    if len(room) < size:
        room = np.empty(size, np.uint8)
    joined = room[:size].view(dtype)
    np.concatenate(arrays, out=joined)
    return _fixed(joined), room


def _rooms() -> list[_Joined]:
    """Those of this thread that no changes use."""
    rooms: list[_Joined] | None = getattr(_own, "joined", None)
    if rooms is None:
        rooms = _own.joined = []
    return rooms


_own = threading.local()

_NONE: Words = np.empty(0, np.intp)


class NativeSteps:
    """As ``PlainSteps``."""

    def __init__(self, sparse: Sparse) -> None:
        self._sparse = sparse
        self._symbols = _fixed(sparse.symbols)
        self._values = _fixed(sparse.values)
        self._planes: Any = None
        self._width = sparse.head.width
        self._escape = escape_of(sparse.head.gap_width)
        self._place = np.zeros(3, np.int64)
        self._words = np.empty(0, np.int64)
        self._begin = 0

    def __repr__(self) -> str:
        return f"<NativeSteps at byte {self._begin}>"

    def apply(self, piece: Bytes) -> Words:
        """Turn the next ``piece`` from old bytes into new ones; the words that change."""
        begin, self._begin = self._begin, self._begin + len(piece)
        are_whole = begin % WORD_BYTES == 0 == len(piece) % self._width
        room = whole_words(len(piece)) // WORD_BYTES + 1
        if len(self._words) < room:
            self._words = np.empty(room, np.int64)
        if are_whole:
            change = _compiled(gap_kernels.change_elements)
            touched = change(*self._elements(piece, begin), self._words)
        else:
            touched = self._change_any(piece, begin)
        return self._words[:touched].copy()

    def _elements(self, piece: Bytes, begin: int) -> tuple[Any, ...]:
        elements = piece.view(f"<u{self._width}")
        return (
            self._symbols,
            self._values,
            self._escape,
            self._place,
            elements,
            begin // self._width,
        )

    def _change_any(self, piece: Bytes, begin: int) -> int:
        """A piece that ends or begins within an element, or a word."""
        if self._planes is None:
            self._planes = _fixed(np.stack(self._sparse.planes))
        touched: int = _compiled(gap_kernels.change_piece)(
            self._symbols,
            self._planes,
            self._width,
            self._escape,
            self._place,
            piece,
            begin,
            self._words,
        )
        return touched

    def finish(self) -> None:
        """Everything was checked at the beginning."""


def _fixed(array: Any) -> Any:
    """``array`` as one that is not written to: each kind of array is compiled for anew."""
    fixed = array.view()
    fixed.flags.writeable = False
    return fixed
