"""The two loops that a compiler makes fast: where a tensor changed, and changing it.

Plain Python that ``numba`` compiles (``gap_native``). Rule: one compiled form each, whatever
the width of the elements, and nothing is looked up outside of the arguments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotswap.stream.frames import Bytes
from hotswap.stream.gap_layout import Symbols

__all__ = ["change_piece", "find_changes"]

_Eights = NDArray[np.uint64]
"""Eight bytes of a tensor each."""


def find_changes(
    old: _Eights,
    new: _Eights,
    bits: np.uint64,
    mask: np.uint64,
    hits: NDArray[np.int64],
    at: NDArray[np.int64],
    values: _Eights,
) -> int:
    """Fill ``at`` and ``values`` with the elements of ``bits`` bits that differ; how many.

    ``at`` counts elements from the first. Both have room for every element and one more,
    ``hits`` for every word and one more.
    """
    # Written down in any case and counted if it is one: a branch would be guessed wrong.
    different = 0
    for word in range(len(old)):
        hits[different] = word
        different += old[word] != new[word]
    found = 0
    per_word = 64 // int(bits)
    for number in range(different):
        word = hits[number]
        change = old[word] ^ new[word]
        for part in range(per_word):
            value = change & mask
            at[found] = word * per_word + part
            values[found] = value
            found += value != 0
            # In two steps: a shift by all 64 bits is nothing that a processor knows.
            change = (change >> (bits - np.uint64(1))) >> np.uint64(1)
    return found


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
