"""Tensors in shared memory whose elements have gaps between them, or are out of order.

Rules:

* Memory is taken for a window of ``WINDOW_BYTES``, however far the elements lie apart: a column
  of a huge tensor costs what the column costs.
* What lies close together is read with one call, gaps included, and whatever the order; what
  lies farther apart than a call is worth is read for itself.
* Read with ``preadv`` and never mapped, as all of a segment (:mod:`hotswap.wire.segments`).
"""

from __future__ import annotations

import numpy as np
import torch

from hotswap.types import TensorSpec
from hotswap.weights.folder import OpenFile
from hotswap.weights.memory import Memory
from hotswap.weights.pieces import copy_quietly
from hotswap.wire.refused import PayloadRefused
from hotswap.wire.sent import SentTensor, row_major, span_elements

__all__ = ["MAX_READS", "WINDOW_BYTES", "StridedTensor"]

WINDOW_BYTES = 2**20
"""What is read at once, and the memory that this takes."""

MAX_READS = 2**20
"""For one tensor: some seconds. Elements that lie more widely scattered are refused."""

# A call costs about as much as reading this much more.
_GAP_BYTES = 16 * 2**10
_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_Ints = tuple[int, ...]


class StridedTensor:
    """``tensor`` of ``file``, ``start`` bytes behind where it says; ``Scattered``.

    The block that has opened the segment owns it; nothing is read once that has ended.
    Raises: PayloadRefused for elements that would take more than ``MAX_READS`` reads.
    """

    __slots__ = ("_file", "_spec", "_start", "_tensor")

    def __init__(self, spec: TensorSpec, *, tensor: SentTensor, file: OpenFile, start: int) -> None:
        self._spec = spec
        self._tensor = tensor
        self._file = file
        self._start = start + tensor.offset_bytes
        order = _widest_first(tensor.strides)
        shape, strides = _ordered(tensor.shape, order), _ordered(tensor.strides, order)
        if _reads(shape, strides, spec.dtype.itemsize) > MAX_READS:
            raise PayloadRefused(
                f"tensor {spec.name!r}: {tensor} is scattered over more than {MAX_READS} places "
                "of its segment; send a contiguous copy"
            )

    def __repr__(self) -> str:
        return f"<StridedTensor {self._spec} in {self._file.name}>"

    @property
    def spec(self) -> TensorSpec:
        """Name, dtype and shape."""
        return self._spec

    def read_into(self, out: torch.Tensor) -> None:
        """Fill ``out`` with the elements in their order. Any thread. Raises: OSError."""
        self.copy_into(out, ())

    def copy_into(self, out: torch.Tensor, part: tuple[slice, ...]) -> None:
        """See ``Scattered``. Takes ``WINDOW_BYTES`` of memory for a while. Raises: OSError."""
        if not out.numel():
            return
        strides = list(self._tensor.strides)
        first = 0
        for at, (cut, size) in enumerate(zip(part, self._tensor.shape, strict=False)):
            begin, _, step = cut.indices(size)
            first += begin * strides[at]
            strides[at] *= step
        order = _widest_first(tuple(strides))
        with Memory(WINDOW_BYTES) as memory:
            window = memory.tensor(
                0, TensorSpec(name=self._spec.name, dtype=torch.uint8, shape=(WINDOW_BYTES,))
            )
            self._gather(out.detach().permute(order), _ordered(strides, order), first, window)
            del window

    def _gather(self, out: torch.Tensor, strides: _Ints, first: int, window: torch.Tensor) -> None:
        """Fill ``out`` from element ``first`` on; the widest of ``strides`` is the first."""
        item, shape = self._spec.dtype.itemsize, tuple(out.shape)
        rows = _rows_at_once(shape, strides, item)
        if rows:
            for at in range(0, shape[0] if shape else 1, rows):
                box = out[at : at + rows] if shape else out
                span = span_elements(tuple(box.shape), strides)
                self._read(first + (at * strides[0] if shape else 0), window[: span * item])
                self._copy(box, window, strides)
            return
        inner = span_elements(shape[1:], strides[1:])
        if inner * item <= _GAP_BYTES and strides[1:] == row_major(shape[1:]):
            self._gather_runs(out, strides[0], first, window)
            return
        for at in range(shape[0]):
            self._gather(out[at], strides[1:], first + at * strides[0], window)

    def _gather_runs(self, out: torch.Tensor, step: int, first: int, window: torch.Tensor) -> None:
        """Rows that lie far apart and have no gaps in themselves: read one by one, and copied
        by the window."""
        run = out[0].numel()
        size = run * self._spec.dtype.itemsize
        for start in range(0, len(out), WINDOW_BYTES // size):
            box = out[start : start + WINDOW_BYTES // size]
            for at in range(len(box)):
                self._read(first + (start + at) * step, window[at * size : (at + 1) * size])
            self._copy(box, window, row_major(tuple(box.shape)))

    def _read(self, first: int, window: torch.Tensor) -> None:
        at = self._start + first * self._spec.dtype.itemsize
        try:
            self._file.read_at(at, window.numpy().data)
        except OSError as error:
            message = f"tensor {self._spec.name!r}: {error.strerror or error}"
            arguments = (message,) if error.errno is None else (error.errno, message)
            raise OSError(*arguments) from error

    def _copy(self, out: torch.Tensor, window: torch.Tensor, strides: _Ints) -> None:
        kind = self._spec.dtype
        if out.dtype == kind and not (out.is_conj() or out.is_neg()):
            # Bits, with numpy, on this thread: torch's own would fight with the forward passes.
            kind = _AS_INTEGERS[kind.itemsize]
            source = window.view(kind).as_strided(tuple(out.shape), strides)
            np.copyto(out.view(kind).numpy(), source.numpy())
        else:
            copy_quietly(out, window.view(kind).as_strided(tuple(out.shape), strides))


def _widest_first(strides: _Ints) -> _Ints:
    return tuple(sorted(range(len(strides)), key=lambda at: -strides[at]))


def _ordered(numbers: _Ints | list[int], order: _Ints) -> _Ints:
    return tuple(numbers[at] for at in order)


def _rows_at_once(shape: _Ints, strides: _Ints, item: int) -> int:
    """How many of the first dimension one read brings, gaps included; 0 where each of them is
    better read for itself."""
    if not shape:
        return 1
    inner, step = span_elements(shape[1:], strides[1:]) * item, strides[0] * item
    if inner > WINDOW_BYTES or (shape[0] > 1 and step - inner > _GAP_BYTES):
        return 0
    return min(shape[0], 1 + (WINDOW_BYTES - inner) // step) if step else shape[0]


def _reads(shape: _Ints, strides: _Ints, item: int) -> int:
    """How many reads a tensor takes; the widest of ``strides`` is the first."""
    reads = 1 if 0 not in shape else 0
    while reads and shape:
        if rows := _rows_at_once(shape, strides, item):
            return reads * -(-shape[0] // rows)
        reads *= shape[0]
        shape, strides = shape[1:], strides[1:]
    return reads
