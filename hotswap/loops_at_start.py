"""Loading what numba compiles before anything is served.

Importing numba and loading a loop takes about a second, most of it with the interpreter's lock
held. The first pull of a server, or its first sparse commit, would do it beside generation,
where a decode step then takes several times as long.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import product

import numpy as np

from hotswap.native import compiled
from hotswap.sparse.kernel import scatter_words
from hotswap.stream.fused import load_fused
from hotswap.stream.gap_layout import GapHead, Sparse, count_gaps, escape_of, join_two
from hotswap.stream.gap_native import NativeSteps, NativeTurns
from hotswap.stream.several import load_several
from hotswap.stream.xor_native import is_worth_it, xor

__all__ = ["load_loops"]

_WIDTHS = (2, 4)
"""Bytes of the elements that models have."""

_log = logging.getLogger("hotswap.serve")


def load_loops(tensor_bytes: Iterable[int]) -> bool:
    """Load every loop, if a model with tensors of ``tensor_bytes`` would use them; whether.

    Blocks: a second, and several when they have to be compiled first.
    """
    if not is_worth_it(max(tensor_bytes, default=0)):
        return False
    xor(np.zeros(8, np.uint8), np.zeros(8, np.uint8), native=True)
    changes = [_one_change(width, gap_width) for width, gap_width in product(_WIDTHS, (1, 2))]
    load_fused(_WIDTHS)
    load_several(_WIDTHS)
    for change in changes:
        for steps in (NativeSteps(change), NativeTurns([change])):
            steps.apply(np.zeros(8, np.uint8))
    for gap_width in (1, 2):
        symbols = np.zeros(1, f"<u{gap_width}")
        symbols.flags.writeable = False
        compiled(count_gaps, brief=True)(symbols, escape_of(gap_width))
    plane = symbols.view(np.uint8)
    compiled(join_two, brief=True)(plane, plane, np.empty(2, "<u2"))
    nothing = np.empty(0, np.int64)
    compiled(scatter_words)(nothing, np.empty(0, np.uint32), nothing)
    _log.info("what numba compiles for pulls and sparse commits is loaded")
    return True


def _one_change(width: int, gap_width: int) -> Sparse:
    """The first element of eight bytes of them."""
    return Sparse(
        head=GapHead(width=width, gap_width=gap_width, elements=8 // width, changed=1),
        symbols=np.zeros(1, f"<u{gap_width}"),
        values=np.ones(1, f"<u{width}"),
    )
