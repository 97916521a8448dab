"""Finding and making changes with numpy alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotswap.stream.frames import Bytes
from hotswap.stream.gap_layout import Sparse, escape_of

__all__ = ["Found", "PlainSteps", "plain_changes"]

Found: TypeAlias = tuple[NDArray[np.int64], NDArray[Any]]
"""Ascending positions of changed elements, and new XOR old there (unsigned, their width)."""

_WORD_BYTES = 8
_BLOCK_SYMBOLS = 2**18


def plain_changes(old: Bytes, new: Bytes, width: int) -> Found:
    """The elements of ``width`` bytes that differ."""
    whole = len(old) // _WORD_BYTES * _WORD_BYTES
    old_words, new_words = old[:whole].view("<u8"), new[:whole].view("<u8")
    # Words first: a comparison of eight bytes costs what one of a single byte does.
    words = np.flatnonzero(old_words != new_words)
    change = (old_words[words] ^ new_words[words]).view(f"<u{width}")
    parts = np.flatnonzero(change)
    per_word = _WORD_BYTES // width
    at = words[parts // per_word]
    at *= per_word
    at += parts % per_word
    values = change[parts]
    if whole == len(old):
        return at, values
    change = old[whole:].view(f"<u{width}") ^ new[whole:].view(f"<u{width}")
    parts = np.flatnonzero(change)
    return (
        np.concatenate((at, parts + whole // width)),
        np.concatenate((values, change[parts])),
    )


class PlainSteps:
    """A decoded change on its way through its tensor, piece by piece in order."""

    def __init__(self, sparse: Sparse) -> None:
        self._width = sparse.head.width
        self._blocks = _blocks(sparse)
        self._at = np.empty(0, np.int64)
        self._values = np.empty((0, self._width), np.uint8)
        self._begin = 0

    def apply(self, piece: Bytes) -> None:
        """Turn the next ``piece`` from old bytes into new ones."""
        begin, end = self._begin, self._begin + len(piece)
        self._begin = end
        while True:
            first = end - end % self._width
            inside = int(np.searchsorted(self._at, first // self._width))
            _change(piece, begin, self._at[:inside], self._values[:inside])
            self._at, self._values = self._at[inside:], self._values[inside:]
            if len(self._at):
                break
            block = next(self._blocks, None)
            if block is None:
                break
            self._at, self._values = block
        if first < end and len(self._at):
            # The piece has the beginning of an element: it stays next for the rest of it.
            _change_bytes(piece, begin, self._at[:1], self._values[:1])

    def finish(self) -> None:
        """Everything was checked at the beginning."""


def _blocks(sparse: Sparse) -> Iterator[tuple[NDArray[np.int64], Bytes]]:
    """Positions and values [changed x width], a few at a time: memory stays small."""
    escape = escape_of(sparse.head.gap_width)
    done, past = 0, 0
    for begin in range(0, len(sparse.symbols), _BLOCK_SYMBOLS):
        symbols = sparse.symbols[begin : begin + _BLOCK_SYMBOLS]
        ends = symbols != escape
        at = symbols.astype(np.int64)
        at += ends
        np.cumsum(at, out=at)
        at += past
        past = int(at[-1])
        at = at[ends]
        at -= 1
        values = np.empty((len(at), sparse.head.width), np.uint8)
        for byte, plane in enumerate(sparse.planes):
            values[:, byte] = plane[done : done + len(at)]
        done += len(at)
        yield at, values


def _change(piece: Bytes, begin: int, at: NDArray[np.int64], values: Bytes) -> None:
    width = values.shape[1]
    if begin % width or len(piece) % width:
        _change_bytes(piece, begin, at, values)
        return
    elements = piece.view(f"<u{width}")
    at = at - begin // width
    elements[at] ^= values.view(f"<u{width}")[:, 0]


def _change_bytes(piece: Bytes, begin: int, at: NDArray[np.int64], values: Bytes) -> None:
    """Byte by byte, those outside of ``piece`` left out."""
    width = values.shape[1]
    for byte in range(width):
        where = at * width + (byte - begin)
        inside = (where >= 0) & (where < len(piece))
        piece[where[inside]] ^= values[inside, byte]
