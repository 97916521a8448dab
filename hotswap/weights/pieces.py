"""Filling a tensor from a payload, cut into jobs that several threads share.

Rules:

* A job runs on one thread and moves at most 16 MiB, wherever the payload can be
  cut: a ``PieceReadable`` and a tensor can, a plain ``Readable`` is one job.
* Jobs never enter torch's own thread pool: each thread that does grows a pool of
  its own, and they would fight with the forward passes that still run.
* Casts go through ``copy_``, so that they round as ``Tensor.to`` does.
* A payload fills the memory that it is given: one that makes ``out`` other memory has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch

from hotswap.types import Payload, Readable, TensorSpec
from hotswap.weights.memory import Memory

__all__ = [
    "PIECE_BYTES",
    "Job",
    "PieceReadable",
    "Scattered",
    "copy_quietly",
    "equal_bytes",
    "fill_jobs",
    "spec_of",
]

PIECE_BYTES = 16 * 2**20
_SCRATCH_BYTES = 2**20
# at::internal::GRAIN_SIZE: torch runs up to this many elements on the calling thread.
_GRAIN = 32768

Job: TypeAlias = Callable[[], None]


@runtime_checkable
class PieceReadable(Readable, Protocol):
    """A ``Readable`` that can also deliver a run of its elements."""

    def read_piece(self, out: torch.Tensor, start: int) -> None:
        """Fill 1-D ``out`` with row-major elements ``start:start + len(out)``.

        As ``read_into``: contiguous CPU memory of the source's dtype, any thread,
        opens nothing. Raises: OSError.
        """
        ...


@runtime_checkable
class Scattered(Readable, Protocol):
    """A ``Readable`` whose elements must be looked for one here, one there: that takes longer
    than a copy, and is done before a pause where it can be."""

    def copy_into(self, out: torch.Tensor, part: tuple[slice, ...]) -> None:
        """Make ``out`` (CPU, any layout and dtype) equal to ``self[part]``, cast as ``copy_``
        casts. Any thread; opens nothing. Raises: OSError."""
        ...


def spec_of(name: str, payload: Payload) -> TensorSpec:
    """What ``payload`` delivers, under the name that its bucket has for it."""
    if isinstance(payload, torch.Tensor):
        return TensorSpec(name=name, dtype=payload.dtype, shape=tuple(payload.shape))
    return TensorSpec(name=name, dtype=payload.spec.dtype, shape=payload.spec.shape)


def fill_jobs(out: torch.Tensor, payload: Payload, *, part: tuple[slice, ...] = ()) -> list[Job]:
    """Jobs that together make ``out`` equal to ``payload[part]``, in any order, on any thread.

    Shapes are equal and the cast is allowed (the plan has checked both).
    """
    if isinstance(payload, torch.Tensor):
        return _copy_jobs(out, payload.detach()[part])
    if isinstance(payload, Scattered) and out.device.type == "cpu":
        return [partial(payload.copy_into, out, part)]
    if isinstance(payload, PieceReadable) and out.is_contiguous() and not part:
        return _piece_jobs(_flat(out), payload)
    return [partial(_read_whole, out, payload, part)]


def equal_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous CPU tensors of one dtype have the same bits."""
    left, right = _bytes(one), _bytes(other)
    return len(left) == len(right) and all(
        np.array_equal(left[at : at + _SCRATCH_BYTES], right[at : at + _SCRATCH_BYTES])
        for at in range(0, len(left), _SCRATCH_BYTES)
    )


def _read_into(payload: Readable, out: torch.Tensor) -> None:
    with _staying(out):
        payload.read_into(out)


@contextmanager
def _staying(out: torch.Tensor) -> Iterator[None]:
    """Around a read into ``out``. Raises: ValueError when ``out`` is not the memory it was.

    What was to be filled is then unfilled, and ``out`` itself tells nobody.
    """
    before = _place(out)
    yield
    if (now := _place(out)) != before:
        raise ValueError(
            f"its read put other memory in the place of the one it was given (address, shape, "
            f"strides and dtype were {before}, now {now}); fill out in place, as out.copy_() does"
        )


def _place(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _bytes(tensor: torch.Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    array: np.ndarray[tuple[int], np.dtype[np.uint8]] = _flat(tensor).view(torch.uint8).numpy()
    return array


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a contiguous tensor. view(-1) of a lone one may keep an odd stride."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _copy_jobs(out: torch.Tensor, source: torch.Tensor) -> list[Job]:
    if out.dtype == source.dtype and _is_plain_memory(out) and _is_plain_memory(source):
        to, come = _bytes(out), _bytes(source)
        return [
            partial(np.copyto, to[at : at + PIECE_BYTES], come[at : at + PIECE_BYTES])
            for at in range(0, len(to), PIECE_BYTES)
        ]
    piece = PIECE_BYTES // max(out.element_size(), source.element_size())
    return [partial(copy_quietly, to, come) for to, come in _cut(out, source, piece)]


def _is_plain_memory(tensor: torch.Tensor) -> bool:
    # Lazy conjugates and negatives (imag of a conjugate) are not what their bytes say.
    plain = not (tensor.is_conj() or tensor.is_neg())
    return plain and tensor.device.type == "cpu" and tensor.is_contiguous()


def _cut(
    out: torch.Tensor, source: torch.Tensor, elements: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of equal sub-tensors of at most ``elements`` elements, cut along leading dimensions."""
    if out.numel() <= elements:
        if out.numel():
            yield out, source
        return
    rows = max(1, elements // (out.numel() // out.shape[0]))
    for start in range(0, out.shape[0], rows):
        if rows == 1:
            yield from _cut(out[start], source[start], elements)
        else:
            yield out[start : start + rows], source[start : start + rows]


def copy_quietly(out: torch.Tensor, source: torch.Tensor) -> None:
    """``out.copy_(source)`` without torch's thread pool."""
    if out.device.type != "cpu" or source.device.type != "cpu":
        out.copy_(source)
        return
    if out.is_contiguous() and source.is_contiguous():
        out, source = _flat(out), _flat(source)
    for to, come in _cut(out, source, _GRAIN):
        to.copy_(come)


def _piece_jobs(out: torch.Tensor, payload: PieceReadable) -> list[Job]:
    as_is = out.device.type == "cpu" and out.dtype == payload.spec.dtype
    read = partial(_read_piece if as_is else _read_through, payload)
    length = PIECE_BYTES // payload.spec.dtype.itemsize
    return [partial(read, out[at : at + length], at) for at in range(0, out.numel(), length)]


def _read_piece(payload: PieceReadable, out: torch.Tensor, start: int) -> None:
    with _staying(out):
        payload.read_piece(out, start)


def _read_through(payload: PieceReadable, out: torch.Tensor, start: int) -> None:
    """Read into scratch memory that stays in cache, and cast or send it from there."""
    on_cpu = out.device.type == "cpu"
    length = (_SCRATCH_BYTES if on_cpu else PIECE_BYTES) // payload.spec.dtype.itemsize
    # Pinned, a copy to the device runs at the speed of the bus.
    scratch = torch.empty(
        min(length, out.numel()), dtype=payload.spec.dtype, pin_memory=out.device.type == "cuda"
    )
    for at in range(0, out.numel(), length):
        to = out[at : at + length]
        come = scratch[: to.numel()]
        _read_piece(payload, come, start + at)
        copy_quietly(to, come)


def _read_whole(out: torch.Tensor, payload: Readable, part: tuple[slice, ...]) -> None:
    spec = payload.spec
    as_is = out.dtype == spec.dtype and out.is_contiguous() and not part
    if as_is and out.device.type == "cpu":
        _read_into(payload, _flat(out).view(spec.shape))
        return
    with Memory(spec.size_bytes) as memory:
        scratch = memory.tensor(0, TensorSpec(name=spec.name, dtype=spec.dtype, shape=spec.shape))
        _read_into(payload, scratch)
        copy_quietly(out, scratch[part])
        del scratch
