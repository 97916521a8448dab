"""A tensor as a payload describes it, before any memory is opened.

Rule: it is checked when it is made: every element that shape and strides can reach lies
inside its storage. All of that is counted in Python's integers, which do not overflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch

from hotswap.wire.refused import PayloadRefused

__all__ = [
    "COUNTERS",
    "CudaStorage",
    "NoStorage",
    "NoStorageType",
    "SentTensor",
    "SharedStorage",
    "Storage",
    "row_major",
    "span_elements",
]

COUNTERS = 10_000
"""How many counters of device memory torch keeps in one segment (64 bits each)."""

_MAX_DIMS = 64
_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStorage:
    """``size_bytes`` of the segment ``name`` in ``/dev/shm``, behind torch's count of users."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaStorage:
    """A piece of another process's device memory, as CUDA's IPC names it.

    ``device`` is the sender's index, or the UUID of the device where it says that.
    """

    device: int | str
    handle: bytes
    size_bytes: int
    offset_bytes: int
    ref_counter_handle: bytes
    ref_counter_offset: int
    event_handle: bytes
    event_sync_required: bool


@dataclass(frozen=True, slots=True)
class NoStorageType:
    """The storage of a tensor without elements."""

    size_bytes: int = 0


NoStorage: NoStorageType = NoStorageType()
"""The only one of its kind."""

Storage: TypeAlias = SharedStorage | CudaStorage | NoStorageType


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTensor:
    """``shape`` elements of ``dtype``, ``strides`` (in elements) apart, the first of them at
    byte ``offset_bytes`` of ``storage``. Nothing has to be aligned.

    Raises: PayloadRefused when it reaches out of its storage, or is no tensor.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset_bytes: int
    storage: Storage

    def __post_init__(self) -> None:
        numbers = (*self.shape, *self.strides, self.offset_bytes)
        if len(self.shape) > _MAX_DIMS or len(self.shape) != len(self.strides):
            raise PayloadRefused(
                f"a tensor has {len(self.shape)} dimensions and {len(self.strides)} strides, "
                f"wanted as many of one as of the other, and at most {_MAX_DIMS}"
            )
        if any(not 0 <= number <= _MAX for number in numbers):
            raise PayloadRefused(f"{self}: a number is negative or past 2^63")
        if self.size_bytes > _MAX or self.offset_bytes + self.span_bytes > self.storage.size_bytes:
            raise PayloadRefused(
                f"{self}: reaches from byte {self.offset_bytes} to byte "
                f"{self.offset_bytes + self.span_bytes}, and its storage has "
                f"{self.storage.size_bytes}"
            )
        # torch multiplies the sizes of a tensor without elements too.
        if math.prod(n for n in self.shape if n) * self.dtype.itemsize > _MAX:
            raise PayloadRefused(f"{self}: its sizes multiply to more than 2^63 bytes")

    def __str__(self) -> str:
        shape, strides = list(self.shape), list(self.strides)
        return f"{str(self.dtype).removeprefix('torch.')} {shape} with strides {strides}"

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements, each counted as often as the shape has it."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def span_bytes(self) -> int:
        """Bytes from its first element to the end of its last; 0 without elements."""
        return span_elements(self.shape, self.strides) * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether its elements lie in row-major order without a gap."""
        wanted = row_major(self.shape)
        steps = zip(self.shape, self.strides, wanted, strict=True)
        return all(n == 1 or stride == packed for n, stride, packed in steps)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def span_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last that ``shape`` and ``strides`` reach, both included."""
    if not math.prod(shape):
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
