"""The loops of ``gap_kernels``, compiled: ``pip install 'hotswap[native]'``."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotswap.native import compiled as _compiled
from hotswap.native import has_native
from hotswap.stream import gap_kernels
from hotswap.stream.frames import Bytes
from hotswap.stream.gap_layout import Sparse, escape_of
from hotswap.stream.gap_plain import Found, plain_changes
from hotswap.stream.words import WORD_BYTES, Words, whole_words

__all__ = ["NativeSteps", "has_native", "native_changes"]


def native_changes(old: Bytes, new: Bytes, width: int) -> Found:
    """As ``plain_changes``."""
    words = len(old) // WORD_BYTES
    whole = words * WORD_BYTES
    room = whole // width
    at, values = np.empty(room + 1, np.int64), np.empty(room + 1, np.uint64)
    mask = np.uint64((1 << 8 * width) - 1)
    found = _compiled(gap_kernels.find_changes)(
        _fixed(old[:whole]).view("<u8"),
        _fixed(new[:whole]).view("<u8"),
        np.uint64(8 * width),
        mask,
        np.empty(words + 1, np.int64),
        at,
        values,
    )
    head = at[:found], values[:found].astype(f"<u{width}")
    if whole == len(old):
        return head
    tail_at, tail_values = plain_changes(old[whole:], new[whole:], width)
    return np.concatenate((head[0], tail_at + room)), np.concatenate((head[1], tail_values))


class NativeSteps:
    """As ``PlainSteps``."""

    def __init__(self, sparse: Sparse) -> None:
        self._symbols = _fixed(sparse.symbols)
        self._planes = _fixed(np.stack(sparse.planes))
        self._width = sparse.head.width
        self._escape = escape_of(sparse.head.gap_width)
        self._place = np.zeros(3, np.int64)
        self._words = np.empty(0, np.int64)
        self._begin = 0

    def __repr__(self) -> str:
        return f"<NativeSteps at byte {self._begin}>"

    def apply(self, piece: Bytes) -> Words:
        """Turn the next ``piece`` from old bytes into new ones; the words that change."""
        room = whole_words(len(piece)) // WORD_BYTES
        if len(self._words) < room:
            self._words = np.empty(room, np.int64)
        touched = _compiled(gap_kernels.change_piece)(
            self._symbols,
            self._planes,
            self._width,
            self._escape,
            self._place,
            piece,
            self._begin,
            self._words,
        )
        self._begin += len(piece)
        return self._words[:touched].copy()

    def finish(self) -> None:
        """Everything was checked at the beginning."""


def _fixed(array: Any) -> Any:
    """``array`` as one that is not written to: each kind of array is compiled for anew."""
    fixed = array.view()
    fixed.flags.writeable = False
    return fixed
