"""Finding and making changes with numpy alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotswap.stream.frames import Bytes
from hotswap.stream.gap_layout import Sparse, Symbols, escape_of
from hotswap.stream.words import WORD_BYTES, Words, different_words

__all__ = ["Found", "PlainSteps", "plain_changes", "plain_symbols"]

Found: TypeAlias = tuple[NDArray[np.int64], NDArray[Any]]
"""Ascending positions of changed elements, and new XOR old there (unsigned, their width)."""

_BLOCK_SYMBOLS = 2**18


def plain_changes(old: Bytes, new: Bytes, width: int) -> Found:
    """The elements of ``width`` bytes that differ."""
    whole = len(old) // WORD_BYTES * WORD_BYTES
    old_words, new_words = old[:whole].view("<u8"), new[:whole].view("<u8")
    # Words first: a comparison of eight bytes costs what one of a single byte does.
    words = _places(old_words != new_words)
    # take() and a search among booleans: a third faster than an index and one among numbers.
    change = (old_words.take(words) ^ new_words.take(words)).view(f"<u{width}")
    parts = np.flatnonzero(change != 0)
    at, values = _numbers(words, parts, WORD_BYTES // width), change.take(parts)
    if whole == len(old):
        return at, values
    change = old[whole:].view(f"<u{width}") ^ new[whole:].view(f"<u{width}")
    parts = np.flatnonzero(change)
    return (
        np.concatenate((at, parts + whole // width)),
        np.concatenate((values, change[parts])),
    )


def _places(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where ``flags`` are True.

    numpy goes from one to the next where few are, and waits at each: for one in 25, four
    at a time and then those four take half as long.
    """
    whole = len(flags) // 4 * 4
    fours = flags[:whole].view("<u4")
    some = np.flatnonzero(fours != 0)
    places = _numbers(some, np.flatnonzero(fours.take(some).view(np.bool_)), 4)
    if whole == len(flags):
        return places
    return np.concatenate((places, whole + np.flatnonzero(flags[whole:])))


def _numbers(groups: NDArray[np.int64], inside: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Numbers of single ones: ``inside`` counts through ``groups`` of ``size``, a power of 2."""
    # A division for each would cost more than all the rest.
    shift = size.bit_length() - 1
    numbers = groups.take(inside >> shift)
    numbers <<= shift
    numbers += inside & (size - 1)
    return numbers


def plain_symbols(at: NDArray[np.int64], gap_width: int) -> Symbols:
    """The distances between ascending positions ``at``, in symbols of ``gap_width`` bytes."""
    escape = escape_of(gap_width)
    gaps = np.empty(len(at), np.int64)
    np.subtract(at[1:], at[:-1], out=gaps[1:])
    gaps[0] = at[0] + 1
    gaps -= 1
    far = np.flatnonzero(gaps >= escape)
    if not len(far):
        return gaps.astype(f"<u{gap_width}")
    # Few are far: a division for each gap would cost more than all the rest.
    escapes = gaps[far] // escape
    gaps[far] -= escapes * escape
    ends = np.zeros(len(gaps), np.int64)
    ends[far] = escapes
    np.cumsum(ends, out=ends)
    ends += np.arange(len(gaps))
    symbols = np.full(int(ends[-1]) + 1, escape, f"<u{gap_width}")
    # Narrow before they are scattered: a cast for each on the way takes three times as long.
    symbols[ends] = gaps.astype(symbols.dtype)
    return symbols


class PlainSteps:
    """A decoded change on its way through its tensor, piece by piece in order."""

    def __init__(self, sparse: Sparse, *, told: bool = True) -> None:
        """Without ``told`` nobody asks which words change."""
        self._told = told
        self._width = sparse.head.width
        self._blocks = _blocks(sparse)
        self._at = np.empty(0, np.int64)
        self._values = np.empty((0, self._width), np.uint8)
        self._begin = 0

    def __repr__(self) -> str:
        return f"<PlainSteps at byte {self._begin}>"

    def apply(self, piece: Bytes) -> Words:
        """Turn the next ``piece`` from old bytes into new ones; the words that change."""
        begin, end = self._begin, self._begin + len(piece)
        self._begin = end
        if begin % WORD_BYTES or end % self._width:
            old = piece.copy()
            self._apply_any(piece, begin, end)
            return different_words(old, piece)
        elements = piece.view(f"<u{self._width}")
        touched = [np.empty(0, np.int64)]
        for at, values in self._until(end // self._width):
            inside = at - begin // self._width
            elements[inside] ^= values.view(elements.dtype)[:, 0]
            if self._told:
                inside //= WORD_BYTES // self._width
                touched.append(inside)
        if not self._told:
            return touched[0]
        words = np.concatenate(touched)
        first_of_each: Words = words[np.diff(words, prepend=-1) != 0]
        return first_of_each

    def _apply_any(self, piece: Bytes, begin: int, end: int) -> None:
        """A piece that ends or begins within an element, or a word."""
        whole = end // self._width
        for at, values in self._until(whole):
            _change_bytes(piece, begin, at, values)
        if whole * self._width < end and len(self._at):
            # The piece has the beginning of an element: it stays next for the rest of it.
            _change_bytes(piece, begin, self._at[:1], self._values[:1])

    def _until(self, element: int) -> Iterator[tuple[NDArray[np.int64], Bytes]]:
        """Positions below ``element`` and their values, which are then done with."""
        while True:
            inside = int(np.searchsorted(self._at, element))
            if inside:
                yield self._at[:inside], self._values[:inside]
            self._at, self._values = self._at[inside:], self._values[inside:]
            block = None if len(self._at) else next(self._blocks, None)
            if block is None:
                return
            self._at, self._values = block

    def finish(self) -> None:
        """Everything was checked at the beginning."""


def _blocks(sparse: Sparse) -> Iterator[tuple[NDArray[np.int64], Bytes]]:
    """Positions and values [changed x width], a few at a time: memory stays small."""
    escape = escape_of(sparse.head.gap_width)
    octets = sparse.values.view(np.uint8).reshape(-1, sparse.head.width)
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
        yield at, octets[done : done + len(at)]
        done += len(at)


def _change_bytes(piece: Bytes, begin: int, at: NDArray[np.int64], values: Bytes) -> None:
    """Byte by byte, those outside of ``piece`` left out."""
    width = values.shape[1]
    for byte in range(width):
        where = at * width + (byte - begin)
        inside = (where >= 0) & (where < len(piece))
        piece[where[inside]] ^= values[inside, byte]
