"""The loops that a compiler makes fast: where a tensor changed, telling it, and changing it.

Plain Python that ``numba`` compiles (``gap_native``). Rule: nothing is looked up outside of the
arguments, and places are unsigned: what may be negative costs a comparison each time. The search
is three loops, as one that does all of it takes twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hotswap.stream.frames import Bytes
from hotswap.stream.gap_layout import Symbols, Values

__all__ = [
    "change_elements",
    "change_in_turn",
    "change_piece",
    "elements_finder",
    "find_blocks",
    "find_words",
    "write_gaps",
]

_Eights = NDArray[np.uint64]
"""Eight bytes of a tensor each."""

_Places = NDArray[np.uint32]

_U = np.uint64
_Finder = Callable[[_Eights, _Eights, _Places, int, NDArray[np.int64], _Eights], int]


def find_blocks(old: _Eights, new: _Eights, blocks: _Places) -> int:
    """Fill ``blocks`` with the whole blocks of four words that differ; how many.

    ``blocks`` has room for one more than there are.
    """
    found = _U(0)
    for number in range(_U(len(old)) // _U(4)):
        block = _U(number)
        word = _U(4) * block
        change = (old[word] ^ new[word]) | (old[word + _U(1)] ^ new[word + _U(1)])
        word += _U(2)
        change |= (old[word] ^ new[word]) | (old[word + _U(1)] ^ new[word + _U(1)])
        # Written down in any case and counted if it is one: a branch would be guessed wrong.
        blocks[found] = block
        found += _U(change != _U(0))
    return int(found)


def find_words(old: _Eights, new: _Eights, blocks: _Places, count: int, words: _Places) -> int:
    """Fill ``words`` with those that differ, of ``count`` blocks and past the last whole one.

    How many. ``words`` has room for one more than there are.
    """
    found = _U(0)
    for number in range(_U(count)):
        begin = _U(4) * _U(blocks[number])
        for part in range(_U(4)):
            word = begin + _U(part)
            words[found] = word
            found += _U(old[word] != new[word])
    for rest in range(_U(len(old)) // _U(4) * _U(4), _U(len(old))):
        word = _U(rest)
        words[found] = word
        found += _U(old[word] != new[word])
    return int(found)


@cache
def elements_finder(width: int) -> _Finder:
    """The loop that finds elements of ``width`` bytes: one that knows it takes half the time."""
    per_word, size, mask = _U(8 // width), _U(8 * width), _U(2 ** (8 * width) - 1)
    low_32, low_16, low_8 = _U(2**32 - 1), _U(2**16 - 1), _U(2**8 - 1)

    def find_elements(
        old: _Eights,
        new: _Eights,
        words: _Places,
        count: int,
        at: NDArray[np.int64],
        values: _Eights,
    ) -> int:
        """Fill ``at`` and ``values`` with the elements that differ in ``count`` words; how many.

        Both have room for every element.
        """
        found = _U(0)
        for number in range(_U(count)):
            word = _U(words[number])
            change = old[word] ^ new[word]
            while change != _U(0):  # once, as a rule
                rest, low = change, _U(0)
                if width <= 4:
                    low = _U((rest & low_32) == _U(0)) << _U(5)
                    rest >>= low
                if width <= 2:
                    more = _U((rest & low_16) == _U(0)) << _U(4)
                    rest >>= more
                    low += more
                if width <= 1:
                    more = _U((rest & low_8) == _U(0)) << _U(3)
                    rest >>= more
                    low += more
                at[found] = word * per_word + low // size
                values[found] = rest & mask
                found += _U(1)
                change ^= (rest & mask) << low
        return int(found)

    return find_elements


def write_gaps(at: NDArray[np.int64], escape: int, symbols: NDArray[np.uint16]) -> int:
    """Fill ``symbols`` with the distances between ascending positions ``at``; how many."""
    count, after = 0, 0
    for number in range(len(at)):
        gap = at[number] - after
        after = at[number] + 1
        while gap >= escape:
            symbols[count] = escape
            count += 1
            gap -= escape
        symbols[count] = gap
        count += 1
    return count


def change_piece(
    symbols: Symbols,
    planes: Bytes,
    width: int,
    escape: int,
    place: NDArray[np.int64],
    piece: Bytes,
    begin: int,
    words: NDArray[np.int64],
) -> int:
    """XOR what lies in ``piece``, which begins at byte ``begin`` of the tensor.

    ``planes`` [width x changed]. ``place``: the next symbol, the next value and the element
    after the last gap; moved on. An element that the piece has only half of stays next.
    Fills ``words`` with the numbers of the piece's eight-byte words that change; how many.
    """
    symbol, value, element = place[0], place[1], place[2]
    end = begin + len(piece)
    touched, last = 0, -1
    while symbol < len(symbols):
        gap = np.int64(symbols[symbol])
        if gap == escape:
            element += gap
            symbol += 1
            continue
        first = (element + gap) * width
        if first >= end:
            break
        for byte in range(width):
            where = first + byte - begin
            if 0 <= where < len(piece):
                piece[where] ^= planes[byte, value]
                word = where >> 3
                if word != last:
                    words[touched] = last = word
                    touched += 1
        if first + width > end:
            break
        element += gap + 1
        symbol += 1
        value += 1
    place[0], place[1], place[2] = symbol, value, element
    return touched


def change_elements(
    symbols: Symbols,
    values: Values,
    escape: int,
    place: NDArray[np.int64],
    piece: Values,
    begin: int,
    words: NDArray[np.int64],
) -> int:
    """As ``change_piece``, for a ``piece`` of whole elements, of which it is ``begin`` th on.

    A word begins with it. ``words`` has room for one more than there are.
    """
    symbol, value, element = place[0], place[1], place[2] - begin
    shift = 0
    while (piece.itemsize << shift) < 8:
        shift += 1
    touched, last = 0, -1
    while symbol < len(symbols):
        gap = np.int64(symbols[symbol])
        symbol += 1
        if gap == escape:
            element += gap
            continue
        element += gap
        if element >= len(piece):
            symbol, element = symbol - 1, element - gap
            break
        # Unsigned: what may be negative costs a comparison each time.
        piece[np.uint64(element)] ^= values[np.uint64(value)]
        word = element >> shift
        # Written down in any case and counted if it is another: a branch would be guessed wrong.
        words[np.uint64(touched)] = word
        touched += word != last
        last = word
        element += 1
        value += 1
    place[0], place[1], place[2] = symbol, value, element + begin
    return touched


def change_in_turn(
    symbols: Symbols,
    values: Values,
    ends: NDArray[np.int64],
    escapes: NDArray[np.int64],
    places: NDArray[np.int64],
    piece: Values,
    begin: int,
) -> None:
    """As ``change_elements`` with several changes, one after the other, telling no words.

    Their ``symbols`` and ``values`` follow one another; ``ends`` [changes] says where each one's
    symbols end. ``places`` [changes x 3] count from the first of all.
    """
    for change in range(len(ends)):
        symbol, value = places[change, 0], places[change, 1]
        element, end, escape = places[change, 2] - begin, ends[change], escapes[change]
        while symbol < end:
            gap = np.int64(symbols[np.uint64(symbol)])
            if gap == escape:
                element += gap
                symbol += 1
                continue
            if element + gap >= len(piece):
                break
            element += gap
            piece[np.uint64(element)] ^= values[np.uint64(value)]
            element += 1
            symbol += 1
            value += 1
        places[change, 0], places[change, 1] = symbol, value
        places[change, 2] = element + begin
