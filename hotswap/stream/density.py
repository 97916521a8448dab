"""How much of a tensor a delta changes, whatever its encoding."""

from __future__ import annotations

import numpy as np

from hotswap.stream.blobs import Delta

__all__ = ["changed_bytes"]


def changed_bytes(delta: Delta, length: int) -> int:
    """How many bytes of a tensor of ``length`` bytes ``delta`` changes.

    Takes two tensors of memory. Raises: DeltaDamaged.
    """
    # A byte that is left alone stays what it was, whatever that is; one that is
    # changed cannot be both what it was in the one and what it was in the other.
    low, high = np.zeros(length, np.uint8), np.full(length, 255, np.uint8)
    delta.apply(low)
    delta.apply(high)
    return int(np.count_nonzero((low != 0) | (high != 255)))
