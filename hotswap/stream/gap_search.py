"""The search for what changed, and the gaps between, compiled: ``pip install 'hotswap[native]'``.

Rule of what numba compiles here: nothing is looked up outside of the arguments but numbers that
never change, and places are unsigned: what may be negative costs a comparison each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotswap.native import compiled as _compiled
from hotswap.native_calls import call
from hotswap.stream.frames import Bytes
from hotswap.stream.gap_layout import Symbols, escape_of
from hotswap.stream.gap_plain import Found, plain_changes
from hotswap.stream.native_hash import Hash, addresses

__all__ = ["changes_finder", "native_changes", "native_symbols", "write_gaps"]

_Eights = NDArray[np.uint64]
"""Eight bytes of a tensor each."""

_Places = NDArray[np.uint32]

_U = np.uint64
_Finder = Callable[[_Eights, _Eights, _Places, _Places, NDArray[np.int64], _Eights, int, int], int]

_BLOCK_BYTES = 32

_PART_WORDS = 2**13
"""What is gone through three times, each time for less of it: two of these stay in the cache."""

_KEPT_ELEMENTS = 2**17
"""More changes than these are no reason to keep the memory that they took."""


def native_changes(old: Bytes, new: Bytes, width: int, *, hash: Hash | None = None) -> Found:
    """As ``plain_changes``; ``hash`` takes ``new`` while it is at hand."""
    whole = len(old) // _BLOCK_BYTES * _BLOCK_BYTES
    room = _room_for(whole // width)
    found = _compiled(changes_finder(width))(
        _eights(old[:whole]),
        _eights(new[:whole]),
        room.blocks,
        room.words,
        room.at,
        room.values,
        0 if hash is None else addresses()[1],
        0 if hash is None else hash.address,
    )
    head = room.at[:found].copy(), room.values[:found].astype(f"<u{width}")
    if found > _KEPT_ELEMENTS:
        del _own.room
    if whole == len(old):
        return head
    if hash is not None:
        hash.update(new[whole:].data)
    tail_at, tail_values = plain_changes(old[whole:], new[whole:], width)
    tail_at += whole // width
    return np.concatenate((head[0], tail_at)), np.concatenate((head[1], tail_values))


def native_symbols(at: NDArray[np.int64], gap_width: int) -> Symbols:
    """As ``plain_symbols``."""
    escape = escape_of(gap_width)
    symbols: Symbols = np.empty(len(at) + int(at[-1]) // escape, f"u{gap_width}")
    count = _compiled(write_gaps)(at, escape, symbols)
    return symbols[:count]


def _eights(tensor: Bytes) -> _Eights:
    """As one that is not written to: each kind of array is compiled for anew."""
    words = tensor.view("<u8")
    words.flags.writeable = False
    return words


class _Room:
    """What a search fills: fresh memory costs more than what is done with it."""

    def __init__(self, elements: int) -> None:
        self.blocks = np.empty(_PART_WORDS // 4 + 1, np.uint32)
        self.words = np.empty(_PART_WORDS + 1, np.uint32)
        self.at = np.empty(elements, np.int64)
        self.values = np.empty(elements, np.uint64)


def _room_for(elements: int) -> _Room:
    """This thread's own."""
    room: _Room | None = getattr(_own, "room", None)
    if room is None or len(room.at) < elements:
        room = _own.room = _Room(elements)
    return room


_own = threading.local()


@cache
def changes_finder(width: int) -> _Finder:
    """The loop that finds elements of ``width`` bytes: one that knows it takes half the time."""
    per_word, size, mask = _U(8 // width), _U(8 * width), _U(2 ** (8 * width) - 1)
    low_32, low_16, low_8 = _U(2**32 - 1), _U(2**16 - 1), _U(2**8 - 1)
    halved = _U(width <= 4)
    part, one, two, three, four = _U(_PART_WORDS), _U(1), _U(2), _U(3), _U(4)

    def find_changes(
        before: _Eights,
        after: _Eights,
        blocks: _Places,
        words: _Places,
        at: NDArray[np.int64],
        values: _Eights,
        update: int,
        state: int,
    ) -> int:
        """Fill ``at`` and ``values`` with the elements that differ; how many.

        Words come in whole blocks of four. ``at`` counts elements from the first. ``at`` and
        ``values`` have room for every element, ``blocks`` and ``words`` for those of a part.
        ``update`` is the address of the function with which the hash ``state`` takes bytes, or 0.
        """
        found = _U(0)
        address: Any = np.int64(after.ctypes.data)
        for start in range(_U(0), _U(len(before)), part):
            begin = _U(start)
            old, new = before[begin : begin + part], after[begin : begin + part]
            # Written down in any case and counted if it is one: a branch would be guessed wrong.
            different = _U(0)
            for number in range(_U(len(old)) // four):
                word = four * _U(number)
                change = (old[word] ^ new[word]) | (old[word + one] ^ new[word + one])
                change |= old[word + two] ^ new[word + two]
                change |= old[word + three] ^ new[word + three]
                blocks[different] = word
                different += _U(change != _U(0))
            count = _U(0)
            for number in range(different):
                word = _U(blocks[number])
                words[count] = word
                count += _U(old[word] != new[word])
                words[count] = word + one
                count += _U(old[word + one] != new[word + one])
                words[count] = word + two
                count += _U(old[word + two] != new[word + two])
                words[count] = word + three
                count += _U(old[word + three] != new[word + three])
            for number in range(count):
                word = _U(words[number])
                change = old[word] ^ new[word]
                first = (begin + word) * per_word
                while change != _U(0):  # once, as a rule
                    low = halved * (_U((change & low_32) == _U(0)) << _U(5))
                    rest = change >> low
                    if width <= 2:
                        more = _U((rest & low_16) == _U(0)) << _U(4)
                        rest >>= more
                        low += more
                    if width <= 1:
                        more = _U((rest & low_8) == _U(0)) << _U(3)
                        rest >>= more
                        low += more
                    at[found] = first + low // size
                    values[found] = rest & mask
                    found += one
                    change ^= (rest & mask) << low
            if update != 0:
                call(update, state, address + np.int64(8 * begin), 8 * len(new), 0)
        return int(found)

    return find_changes


def write_gaps(at: NDArray[np.int64], escape: int, symbols: Symbols) -> int:
    """Fill ``symbols`` with the distances between ascending positions ``at``; how many."""
    count, after = _U(0), np.int64(0)
    for number in range(_U(len(at))):
        gap = at[_U(number)] - after
        after = at[_U(number)] + np.int64(1)
        while gap >= escape:
            symbols[count] = escape
            count += _U(1)
            gap -= escape
        symbols[count] = gap
        count += _U(1)
    return int(count)
