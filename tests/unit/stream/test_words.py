"""Words of eight bytes: what changed is found to the last byte, also in a part of a word."""

from __future__ import annotations

import numpy as np
import pytest

from hotswap.stream.words import changed_words, different_words, whole_words


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 24, 27])
def test_every_byte_that_changes_is_in_its_word(size: int) -> None:
    old = np.arange(size, dtype=np.uint8)
    assert different_words(old, old).tolist() == []
    assert changed_words(np.zeros(size, np.uint8)).tolist() == []
    for at in range(size):
        new = old.copy()
        new[at] ^= 0x80
        assert different_words(old, new).tolist() == [at // 8]
        assert changed_words(old ^ new).tolist() == [at // 8]
    assert changed_words(np.ones(size, np.uint8)).tolist() == list(range((size + 7) // 8))


def test_sizes_are_rounded_up_to_whole_words() -> None:
    assert [whole_words(size) for size in (0, 1, 8, 9, 16)] == [0, 8, 8, 16, 16]
