"""The loops that a compiler makes fast: changing a tensor, by one change or several.

Plain Python that ``numba`` compiles (``gap_native``). Rule: one compiled form each, whatever
the width of the elements, and nothing is looked up outside of the arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotswap.native_calls import bytes_at, call
from hotswap.stream.frames import Bytes
from hotswap.stream.gap_layout import Symbols, Values
from hotswap.stream.gap_table import Row, Rows

__all__ = [
    "change_elements",
    "change_in_turn",
    "change_piece",
    "change_told",
    "change_untold",
    "read_all",
    "read_change_hash",
    "several",
    "xor_told",
    "xor_untold",
]


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


def change_untold(
    symbols: Symbols,
    values: Values,
    escape: int,
    place: NDArray[np.int64],
    piece: Values,
    begin: int,
) -> None:
    """As ``change_elements``, telling no words."""
    symbol, value, element = place[0], place[1], place[2] - begin
    while symbol < len(symbols):
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
    place[0], place[1], place[2] = symbol, value, element + begin


def change_in_turn(table: Rows, piece: Values, begin: int) -> None:
    """As ``change_untold`` with each of the changes of a ``table`` (``gap_table``)."""
    for number in range(len(table)):
        row = table[number]
        symbols, place = bytes_at(row[0], row[1]), row[5:]
        values = bytes_at(row[2], row[3]).view(piece.dtype)
        if row[4] == 0:
            xor_untold(piece, values[begin : begin + len(piece)])
        elif row[4] == 1:
            change_untold(symbols, values, 255, place, piece, begin)
        else:
            change_untold(symbols.view(np.uint16), values, 65535, place, piece, begin)


def change_told(row: Row, piece: Values, begin: int, words: NDArray[np.int64]) -> int:
    """As ``change_elements`` with the change in a ``row`` of a table."""
    symbols, place = bytes_at(row[0], row[1]), row[5:]
    values = bytes_at(row[2], row[3]).view(piece.dtype)
    if row[4] == 0:
        change = values[begin : begin + len(piece)]
        return xor_told(piece.view(np.uint64), change.view(np.uint64), words)
    if row[4] == 1:
        return change_elements(symbols, values, 255, place, piece, begin, words)
    return change_elements(symbols.view(np.uint16), values, 65535, place, piece, begin, words)


def read_change_hash(
    functions: NDArray[np.int64],
    fd: int,
    at: int,
    out: Values,
    count: int,
    block: int,
    begin: int,
    dense: Values,
    table: Rows,
    words: NDArray[np.int64],
    fresh: NDArray[np.uint64],
) -> tuple[int, int]:
    """Read ``count`` elements of a tensor from byte ``at`` of file ``fd`` on, change and hash them;
    how many were, which are fewer when the file cannot be read, and of how many words was told.

    ``functions``: the addresses of ``pread`` and of an update of a hash, and the hash's state.
    ``out`` has room for all of them, or for the ``block`` elements that are in the processor's
    cache at once. ``begin`` is the first one's number. ``dense`` is XORed with them all, or empty;
    ``table`` as for ``change_in_turn``. ``words``, if it has room, is told of the last of the
    changes, or of ``dense`` without any, from the first element on. ``fresh``, if it has room, is
    what those words are then.
    """
    pread, update, state = functions[0], functions[1], functions[2]
    width = out.itemsize
    address: Any = np.int64(out.ctypes.data)
    keeps, told = len(out) >= count, len(words) > 0
    quiet = len(table) - 1 if told else len(table)
    done, touched = 0, 0
    while done < count:
        size = min(block, count - done)
        first = done if keeps else 0
        begins, span, place = address + first * width, size * width, at + done * width
        if not read_all(pread, fd, begins, span, place):
            break
        piece, before = out[first : first + size], touched
        change = dense[done : done + size]
        if told and quiet < 0:
            touched += xor_told(piece, change, words[touched:])
        elif len(change) > 0:
            xor_untold(piece, change)
        if quiet > 0:
            change_in_turn(table[:quiet], piece, begin + done)
        if told and quiet >= 0:
            touched += change_told(table[quiet], piece, begin + done, words[touched:])
        if len(fresh) > 0:
            eights = piece.view(np.uint64)
            for word in range(before, touched):
                fresh[word] = eights[words[word]]
        for word in range(before, touched):
            words[word] += done * width >> 3
        call(update, state, begins, span, 0)
        done += size
    return done, touched


def several(
    functions: NDArray[np.int64],
    tensors: NDArray[np.int64],
    room: Values,
    block: int,
    table: Rows,
    words: NDArray[np.int64],
    fresh: NDArray[np.uint64],
    told: NDArray[np.int64],
) -> int:
    """As ``read_change_hash`` for each of ``tensors``, whose elements are as wide; how many were.

    Of each it has the file, the first byte there, how many elements, where in ``room`` they may
    be and how many of them at once, the hash's state, and its first change in ``table`` and the
    one after its last. ``block`` elements are in the processor's cache at once. ``told`` is how
    many words each has in ``words``, the tensors' one after the other, if these have room.
    """
    touched = 0
    for tensor in range(len(tensors)):
        fd, at, count, begin, span, state, first, last = tensors[tensor]
        done, found = read_change_hash(
            np.array([functions[0], functions[1], state], np.int64),
            fd,
            at,
            room[begin : begin + span],
            count,
            block,
            0,
            room[:0],
            table[first:last],
            words[touched:],
            fresh[touched:],
        )
        if done < count:
            return tensor
        told[tensor] = found
        touched += found
    return len(tensors)


def read_all(pread: int, fd: int, begins: int, span: int, place: int) -> bool:
    """Read ``span`` bytes at byte ``place`` of a file to where memory ``begins``; whether all are
    there."""
    read = 0
    while read < span:
        got = call(pread, fd, begins + read, span - read, place + read)
        if got <= 0:
            return False
        read += got
    return True


def xor_untold(piece: Values, change: Values) -> None:
    """XOR ``change`` into ``piece``."""
    for element in range(len(piece)):
        piece[element] ^= change[element]


def xor_told(piece: Values, change: Values, words: NDArray[np.int64]) -> int:
    """As ``xor_untold`` for words of eight bytes, and fill ``words`` with those that change; how
    many. ``words`` has room for one more."""
    found = 0
    for word in range(len(piece)):
        # Written down in any case and counted if it is one: a branch would be guessed wrong.
        words[found] = word
        piece[word] ^= change[word]
        found += change[word] != 0
    return found
