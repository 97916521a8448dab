"""The loops of ``gap_kernels``, compiled: ``pip install 'hotswap[native]'``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hotswap.native import compiled as _compiled
from hotswap.native import has_native
from hotswap.stream import gap_kernels
from hotswap.stream.frames import Bytes
from hotswap.stream.gap_layout import Sparse, escape_of
from hotswap.stream.gap_table import Table
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
        self._table = Table(changes)
        self._begin = 0

    def __repr__(self) -> str:
        return f"<NativeTurns of {len(self._table.rows)} at byte {self._begin}>"

    def apply(self, piece: Bytes) -> Words:
        """Turn the next ``piece`` from old bytes into new ones."""
        begin, self._begin = self._begin, self._begin + len(piece)
        elements = piece.view(f"<u{self._width}")
        _in_turn()(self._table.rows, elements, begin // self._width)
        return _NONE

    def finish(self) -> None:
        """Everything was checked at the beginning."""


def _in_turn() -> Callable[..., None]:
    kernels = gap_kernels
    return _compiled(kernels.change_in_turn, kernels.change_untold, kernels.xor_untold)


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
