"""Compiling before a process forks, so that not every fork does it anew."""

from __future__ import annotations

import numpy as np

from hotswap.stream.gap import decode_gap, encode_gap, steps_in_turn, steps_of
from hotswap.stream.gap_layout import Sparse

__all__ = ["compile_once"]


def compile_once() -> None:
    """Use what numba compiles, where it is installed."""
    old = np.zeros(80_000, np.uint8)
    new = old.copy()
    new[np.random.default_rng(0).random(80_000) < 0.01] = 7
    blob = encode_gap(old, new, 2)
    assert blob is not None
    change = decode_gap(memoryview(blob), len(old), where="here")
    assert isinstance(change, Sparse)
    for steps in (steps_of(change), *steps_in_turn([change])):
        steps.apply(old)
