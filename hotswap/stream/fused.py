"""Reading, changing and hashing a piece of a tensor in one compiled call.

Step by step each of them gives the interpreter's lock back and takes it again, and two threads
were no faster than one: they waited for it as long as they worked. It is used where numba is
installed and the library of ``xxhash`` shows its functions; else the steps do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hotswap.native import compiled
from hotswap.stream import gap_kernels
from hotswap.stream.blobs import Delta
from hotswap.stream.encodings import Bytes, Encoding
from hotswap.stream.gap_layout import Sparse, Values
from hotswap.stream.gap_memory import GapMemory
from hotswap.stream.gap_table import Table
from hotswap.stream.native_hash import Hash, addresses, has_native_hash
from hotswap.stream.one_prepares import one_prepares
from hotswap.stream.piecewise import decoded
from hotswap.stream.stored import StoredTensor
from hotswap.stream.words import WORD_BYTES, Words
from hotswap.stream.xor_native import word_room
from hotswap.stream.xor_steps import XorSteps

__all__ = ["LOOPS", "PASSING_BYTES", "Fused", "is_worth_fusing", "load_fused"]

PASSING_BYTES = 2**18
"""In the second-level cache at once."""

_LEAST_BYTES = 2**20
"""Tensors shorter than this are no reason to load a compiler."""


def is_worth_fusing(length: int) -> bool:
    """Whether a tensor of ``length`` bytes is done in few calls, and they can be made here."""
    return length >= _LEAST_BYTES and has_native_hash()


LOOPS = (
    gap_kernels.change_untold,
    gap_kernels.change_in_turn,
    gap_kernels.change_elements,
    gap_kernels.change_told,
    gap_kernels.read_all,
    gap_kernels.xor_told,
    gap_kernels.xor_untold,
)
"""What ``read_change_hash`` calls."""

_NONE: Words = np.empty(0, np.intp)
_NOTHING: Bytes = np.empty(0, np.uint8)
_NO_FRESH: NDArray[np.uint64] = np.empty(0, np.uint64)


class Fused:
    """The changes of one tensor on their way through it: XORs, whose order does not matter."""

    def __init__(
        self,
        tensor: StoredTensor,
        *,
        sparse: Sequence[Sparse],
        dense: XorSteps | None,
        told: bool,
    ) -> None:
        """``sparse`` of elements of one width, at least one of them without ``dense``.

        Raises: OSError when the file of ``tensor`` is none of here.
        """
        self._hash = Hash()
        self._functions = np.array([*addresses(), self._hash.address], np.int64)
        self._tensor, self._fd = tensor, tensor.file.fileno()
        self._dense = dense
        self._table = Table(sparse)
        self._width = sparse[0].head.width if sparse else _widest(tensor.span.length)
        self._told, self._done = told, 0

    def __repr__(self) -> str:
        return f"<Fused at byte {self._done} of {self._tensor.name}>"

    @classmethod
    def of(
        cls,
        tensor: StoredTensor,
        deltas: Sequence[Delta],
        *,
        memory: GapMemory | None,
        told: bool = False,
    ) -> Self | None:
        """``deltas`` of ``tensor``; None where steps have to do it. Raises: DeltaDamaged.

        ``told``: which words the last of them changes is asked for.
        """
        length, encodings = tensor.span.length, [delta.encoding for delta in deltas]
        if Encoding.OVERWRITE in encodings or not is_worth_fusing(length):
            return None
        if encodings.count(Encoding.XOR) > 1:
            return None
        sparse, dense = list[Sparse](), [one for one in deltas if one.encoding is Encoding.XOR]
        with one_prepares():
            for delta in deltas:
                if delta.encoding is Encoding.GAP:
                    change = decoded(delta, length, memory)
                    if isinstance(change, Sparse):
                        sparse.append(change)
                    else:
                        dense.append(replace(delta, blob=change))
        if len(dense) > 1 or len({change.head.width for change in sparse}) > 1:
            return None
        if told and dense and (len(deltas) > 1 or _widest(length) != WORD_BYTES):
            return None
        steps = XorSteps(dense[0], length) if dense else None
        return cls(tensor, sparse=sparse, dense=steps, told=told)

    def through(self, out: Bytes, span: int) -> Words | None:
        """Take the next ``span`` bytes, which are in ``out`` afterwards if it has room for them.

        The words that change, if that is asked for, until the next call by this thread; None when
        the file cannot be read: what went wrong is for steps to tell.
        """
        width = self._width
        room: Values = out.view(f"<u{width}")
        count, begin = span // width, self._done
        words = word_room(span // WORD_BYTES + 2) if self._told else _NONE
        change = _NOTHING if self._dense is None else self._dense.change(span)
        done, touched = _loop()(
            self._functions,
            self._fd,
            self._tensor.span.offset + begin,
            room,
            count,
            min(PASSING_BYTES // width, len(room)),
            begin // width,
            change.view(room.dtype),
            self._table.rows,
            words,
            _NO_FRESH,
        )
        self._done += span
        return words[:touched] if done == count else None

    def finish(self) -> str:
        """The xxh3-128 of everything. Raises: DeltaDamaged."""
        if self._dense is not None:
            self._dense.finish()
        return self._hash.hexdigest()


def load_fused(widths: Iterable[int]) -> None:
    """Load what is called for elements of ``widths`` bytes, and for what changes as words."""
    if not has_native_hash():
        return
    rows, functions = Table([]).rows, np.zeros(3, np.int64)
    for width in {*widths, WORD_BYTES}:
        nothing = np.empty(0, f"<u{width}")
        _loop()(functions, -1, 0, nothing, 0, 1, 0, nothing, rows, _NONE, _NO_FRESH)


def _loop() -> Callable[..., Any]:
    return compiled(gap_kernels.read_change_hash, *LOOPS)


def _widest(length: int) -> int:
    """Into what a tensor of ``length`` bytes that changes as bytes is best divided."""
    return next(width for width in (8, 4, 2, 1) if length % width == 0)
