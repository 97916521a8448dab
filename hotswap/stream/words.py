"""Words of eight bytes: how finely a change of a tensor is told and written down.

Searching bytes for what is not zero takes numpy ten times longer than comparing words and
searching the answers.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotswap.stream.frames import Bytes

__all__ = ["WORD_BYTES", "Words", "changed_words", "different_words", "whole_words"]

WORD_BYTES = 8

Words: TypeAlias = NDArray[np.intp]
"""Numbers of words, counted from the beginning of a piece, ascending; the last may be a part."""


def whole_words(size: int) -> int:
    """``size`` bytes, rounded up to whole words."""
    return -(-size // WORD_BYTES) * WORD_BYTES


def changed_words(change: Bytes) -> Words:
    """The words of ``change`` that are not zero."""
    whole = len(change) // WORD_BYTES * WORD_BYTES
    found = np.flatnonzero(change[:whole].view("<u8") != 0)
    return np.append(found, whole // WORD_BYTES) if change[whole:].any() else found


def different_words(old: Bytes, new: Bytes) -> Words:
    """The words in which ``old`` and ``new``, of one length, differ."""
    whole = len(new) // WORD_BYTES * WORD_BYTES
    found = np.flatnonzero(old[:whole].view("<u8") != new[:whole].view("<u8"))
    same = np.array_equal(old[whole:], new[whole:])
    return found if same else np.append(found, whole // WORD_BYTES)
