"""Host memory that goes back to the system the moment it is let go.

torch and malloc keep what is freed for later; a checkpoint's worth of it must not
linger, so it comes from anonymous mappings.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys

import numpy as np
import torch

from hotswap.closing import Closing
from hotswap.types import TensorSpec

__all__ = ["Memory", "trim_heap"]


class Memory(Closing):
    """An anonymous private mapping, handed out as tensors. Costs nothing until touched.

    ``close`` returns the pages at once, even while tensors still point into them:
    those read zeros from then on, and the addresses go when the last of them does.
    Raises: MemoryError when the system has not got ``size_bytes``.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        try:
            mapping = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"no {size_bytes} bytes of host memory: {error}") from error
        if sys.platform == "linux":
            # A kernel without huge pages refuses the advice, and small pages do as well.
            with contextlib.suppress(OSError):
                mapping.madvise(mmap.MADV_HUGEPAGE)
        self._mapping: mmap.mmap | None = mapping
        # Through numpy, which keeps the mapping exported while a tensor lives:
        # torch.frombuffer does not, and would leave it dangling after a close.
        self._bytes: torch.Tensor | None = torch.from_numpy(np.frombuffer(mapping, dtype=np.uint8))

    def __repr__(self) -> str:
        return f"<Memory {self.size_bytes} bytes{' closed' if self._mapping is None else ''}>"

    def tensor(self, offset: int, spec: TensorSpec) -> torch.Tensor:
        """A tensor of ``spec`` at byte ``offset``, which its dtype must divide.

        Raises: ValueError after ``close``, or when it does not fit.
        """
        if self._bytes is None or offset + spec.size_bytes > self.size_bytes:
            raise ValueError(f"{spec} at byte {offset} is outside {self}")
        flat = self._bytes[offset : offset + spec.size_bytes]
        return flat.view(spec.dtype).view(spec.shape)

    def touch(self) -> None:
        """Have every page now. Raises: ValueError after ``close``."""
        if self._bytes is None:
            raise ValueError(f"{self} has no pages; touch it before it is closed")
        self._bytes.zero_()

    def give_back(self, offset: int, size_bytes: int) -> None:
        """Give the whole pages among these bytes back now: they are zeros from then on, and cost
        nothing. Any thread; nobody may be writing to them."""
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if self._mapping is not None and end > start:
            self._mapping.madvise(mmap.MADV_DONTNEED, start, end - start)

    def close(self) -> None:
        """Give the memory back. Idempotent; nothing may be writing to it."""
        mapping, self._mapping, self._bytes = self._mapping, None, None
        if mapping is None:
            return
        try:
            mapping.close()
        except BufferError:
            # Somebody still holds a tensor (often a traceback, for a moment).
            mapping.madvise(mmap.MADV_DONTNEED)


def trim_heap() -> None:
    """Give back what malloc has kept of memory that was freed. Any thread; glibc alone can."""
    # None is the program itself, with every library that it has loaded.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
