"""The memory of live tensors, let go and taken again in place.

Rules:

* A tensor stays what it is: name, shape, dtype, strides and ties. What is in it is lost.
* In host memory it keeps its addresses, and only the pages behind them go: whoever looks all
  the same reads zeros. On a device its storage has no bytes for a while, and others after it.
* A storage goes as a whole, and only when everything that lies in it may go.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Iterable

import torch

from hotswap.errors import IllegalCommand
from hotswap.weights.memory import trim_heap

__all__ = ["LiveMemory"]

# Linux 5.14; Python has no name for it.
_POPULATE_WRITE = 23


class LiveMemory:
    """What has been let go so far. The thread that runs the module."""

    def __init__(self) -> None:
        self._gone: list[tuple[torch.UntypedStorage, int]] = []

    def __repr__(self) -> str:
        return f"<LiveMemory {len(self._gone)} storages, {self.released_bytes} bytes released>"

    @property
    def released_bytes(self) -> int:
        """Bytes that :meth:`restore` will take; 0 while everything has its memory."""
        return sum(size_bytes for _, size_bytes in self._gone)

    def release(self, tensors: Iterable[torch.Tensor], *, kept: Iterable[torch.Tensor]) -> int:
        """Give back the storages of ``tensors`` that none of ``kept`` lies in; how many bytes.

        What is let go already stays so. Raises: IllegalCommand for memory that cannot go;
        nothing has been let go then.
        """
        busy = {_identity(tensor) for tensor in kept}
        busy |= {storage._cdata for storage, _ in self._gone}
        storages = {_identity(tensor): tensor.untyped_storage() for tensor in tensors}
        fresh = [
            (storage, storage.nbytes())
            for key, storage in storages.items()
            if key not in busy and storage.nbytes()
        ]
        _check([storage for storage, _ in fresh])
        for storage, _ in fresh:
            _let_go(storage)
        self._gone += fresh
        trim_heap()
        return sum(size_bytes for _, size_bytes in fresh)

    def restore(self) -> int:
        """Take memory again for all that was let go; how many bytes. Values are arbitrary.

        Raises: MemoryError; nothing has been taken then.
        """
        try:
            for storage, size_bytes in self._gone:
                _take(storage, size_bytes)
        except (OSError, RuntimeError) as error:
            for storage, _ in self._gone:
                _let_go(storage)
            raise MemoryError(
                f"no memory for {self.released_bytes} bytes of weights ({error}); free some, "
                "and wake them again"
            ) from error
        taken = self.released_bytes
        self._gone.clear()
        return taken


def _identity(tensor: torch.Tensor) -> int:
    """Equal for tensors that lie in one storage, whether it has bytes or not."""
    return int(tensor.untyped_storage()._cdata)


def _check(storages: list[torch.UntypedStorage]) -> None:
    """Raises: IllegalCommand for what cannot be given back."""
    host = [storage for storage in storages if storage.device.type == "cpu"]
    if host and sys.platform != "linux":
        raise IllegalCommand(f"{sys.platform} takes no host memory back from a live tensor")
    fixed = [one for one in storages if one.device.type != "cpu" and not one.resizable()]
    if fixed:
        raise IllegalCommand(
            f"{len(fixed)} of {len(storages)} pieces of device memory cannot be given back: their "
            "size is fixed; load the model into memory of torch's own"
        )


def _let_go(storage: torch.UntypedStorage) -> None:
    if storage.device.type == "cpu":
        _advise(storage, mmap.MADV_DONTNEED)
    else:
        storage.resize_(0)


def _take(storage: torch.UntypedStorage, size_bytes: int) -> None:
    """Raises: RuntimeError, OSError when there is no memory."""
    if storage.device.type != "cpu":
        storage.resize_(size_bytes)
        return
    try:
        _advise(storage, _POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # An older kernel: pages come when they are written.


def _advise(storage: torch.UntypedStorage, advice: int) -> None:
    """Tell the system about the whole pages of ``storage``; others lie in the rest.

    Raises: OSError.
    """
    start = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
    if stop <= start:
        return
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    if madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), advice):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
