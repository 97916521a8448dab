"""XOR and the search for what it changes in one loop: ``pip install 'hotswap[native]'``.

numpy goes through a piece three times and through what it found once more.
"""

from __future__ import annotations

import threading

import numpy as np

from hotswap.native import compiled, has_native
from hotswap.stream.frames import Bytes
from hotswap.stream.gap_kernels import xor_told
from hotswap.stream.words import WORD_BYTES, Words, changed_words, whole_words

__all__ = ["is_worth_it", "word_room", "xor"]

_LEAST_BYTES = 2**20
"""Tensors shorter than this are no reason to load a compiler."""


def is_worth_it(length: int) -> bool:
    """Whether a tensor of ``length`` bytes is changed by what numba compiles."""
    return length >= _LEAST_BYTES and has_native()


def xor(piece: Bytes, change: Bytes, *, native: bool) -> Words:
    """Turn ``piece`` into ``piece ^ change``; the words that this changes."""
    whole = len(piece) // WORD_BYTES * WORD_BYTES
    eights, changes = piece[:whole].view("<u8"), change[:whole].view("<u8")
    if not (native and eights.flags.aligned and changes.flags.aligned):
        np.bitwise_xor(piece, change, out=piece)
        return changed_words(change)
    words = word_room(whole_words(len(piece)) // WORD_BYTES + 1)
    found: int = compiled(xor_told)(eights, changes, words)
    piece[whole:] ^= change[whole:]
    if change[whole:].any():
        words[found] = whole // WORD_BYTES
        found += 1
    return words[:found].copy()


def word_room(count: int) -> Words:
    """Numbers of words, of this thread's own: fresh memory costs more than what is done with it."""
    room: Words | None = getattr(_own, "room", None)
    if room is None or len(room) < count:
        room = _own.room = np.empty(count, np.intp)
    return room[:count]


_own = threading.local()
