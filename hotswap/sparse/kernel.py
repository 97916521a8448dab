"""The loop that writes words to their places: plain Python that ``hotswap.native`` compiles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["scatter_words"]


def scatter_words(
    live: NDArray[np.int64], words: NDArray[np.uint32], values: NDArray[np.int64]
) -> None:
    """``live[words] = values``; nothing is checked and nothing converted."""
    for at in range(len(words)):
        live[words[at]] = values[at]
