"""Changes as compiled loops take them: for each a row of numbers, which say where its arrays are.

So a loop goes through any number of changes, whose gaps need not be of one width, and nothing
is put together for it before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotswap.stream.gap_layout import Dense, Sparse

__all__ = ["Row", "Rows", "Table"]

Row: TypeAlias = NDArray[np.int64]
"""[8]: the address and the bytes of the symbols, those of the values, the width of a gap (0 for a
change of every byte, which is all values), and the place: the next symbol, the next value, and the
element after the last gap, which loops move on."""

Rows: TypeAlias = NDArray[np.int64]
"""[changes x 8]"""

_NO_PLACE = (0, 0, 0)


class Table:
    """``rows`` of ``changes`` at the beginning of their tensors, and the arrays they lead to."""

    def __init__(self, changes: Sequence[Sparse | Dense]) -> None:
        self._changes = tuple(changes)
        self.rows: Rows = np.array([_row(one) for one in changes], np.int64).reshape(-1, 8)

    def __repr__(self) -> str:
        return f"<Table of {len(self.rows)} changes>"


def _row(one: Sparse | Dense) -> tuple[int, ...]:
    gap_width = one.head.gap_width if isinstance(one, Sparse) else 0
    return *one.places, gap_width, *_NO_PLACE
