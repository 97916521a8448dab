"""The loops of ``gap_kernels``, compiled: ``pip install 'hotswap[native]'``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotswap.native import compiled as _compiled
from hotswap.native import has_native
from hotswap.stream import gap_kernels
from hotswap.stream.frames import Bytes
from hotswap.stream.gap_layout import Sparse, Symbols, escape_of
from hotswap.stream.gap_plain import Found, plain_changes
from hotswap.stream.words import WORD_BYTES, Words, whole_words

__all__ = ["NativeSteps", "NativeTurns", "has_native", "native_changes", "native_symbols"]


def native_changes(old: Bytes, new: Bytes, width: int) -> Found:
    """As ``plain_changes``."""
    words = len(old) // WORD_BYTES
    whole = words * WORD_BYTES
    before, after = _fixed(old[:whole]).view("<u8"), _fixed(new[:whole]).view("<u8")
    room = _room_for(words)
    blocks = _compiled(gap_kernels.find_blocks)(before, after, room.blocks)
    different = _compiled(gap_kernels.find_words)(before, after, room.blocks, blocks, room.words)
    at, values = room.elements(different * WORD_BYTES // width)
    found = _compiled(gap_kernels.elements_finder(width))(
        before, after, room.words, different, at, values
    )
    head = at[:found].copy(), values[:found].astype(f"<u{width}")
    if whole == len(old):
        return head
    tail_at, tail_values = plain_changes(old[whole:], new[whole:], width)
    tail_at += whole // width
    return np.concatenate((head[0], tail_at)), np.concatenate((head[1], tail_values))


def native_symbols(at: NDArray[np.int64], gap_width: int) -> Symbols:
    """As ``plain_symbols``."""
    escape = escape_of(gap_width)
    symbols = np.empty(len(at) + int(at[-1]) // escape, np.uint16)
    count = _compiled(gap_kernels.write_gaps)(_fixed(at), escape, symbols)
    return symbols[:count].astype(f"<u{gap_width}")


_KEPT_ELEMENTS = 2**20
"""More changes than these, 16 MB of them, are no reason to keep the memory that they took."""


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
        self._symbols = _fixed(np.concatenate(symbols) if len(changes) > 1 else symbols[0])
        self._values = _fixed(np.concatenate(values) if len(changes) > 1 else values[0])
        self._ends = np.cumsum([len(one) for one in symbols])
        self._escapes = np.array([escape_of(change.head.gap_width) for change in changes])
        self._places = np.zeros((len(changes), 3), np.int64)
        self._places[1:, 0] = self._ends[:-1]
        self._places[1:, 1] = np.cumsum([len(one) for one in values])[:-1]
        self._begin = 0

    def __repr__(self) -> str:
        return f"<NativeTurns of {len(self._ends)} at byte {self._begin}>"

    def apply(self, piece: Bytes) -> Words:
        """Turn the next ``piece`` from old bytes into new ones."""
        begin, self._begin = self._begin, self._begin + len(piece)
        _compiled(gap_kernels.change_in_turn)(
            self._symbols,
            self._values,
            self._ends,
            self._escapes,
            self._places,
            piece.view(f"<u{self._width}"),
            begin // self._width,
        )
        return _NONE

    def finish(self) -> None:
        """Everything was checked at the beginning."""


_NONE: Words = np.empty(0, np.intp)


class _Room:
    """What a search fills: fresh memory costs more than what is done with it."""

    def __init__(self, words: int) -> None:
        self.blocks = np.empty(words // 4 + 1, np.uint32)
        self.words = np.empty(words + 1, np.uint32)
        self._at = np.empty(_KEPT_ELEMENTS, np.int64)
        self._values = np.empty(_KEPT_ELEMENTS, np.uint64)

    def elements(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Room for positions and values of ``count`` elements."""
        if count <= _KEPT_ELEMENTS:
            return self._at, self._values
        return np.empty(count, np.int64), np.empty(count, np.uint64)


def _room_for(words: int) -> _Room:
    """This thread's own."""
    room: _Room | None = getattr(_own, "room", None)
    if room is None or len(room.words) <= words:
        room = _own.room = _Room(words)
    return room


_own = threading.local()


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
