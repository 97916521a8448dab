"""Every call by which a pull changes the local disk.

Rule: nothing else in this package changes a file of a local checkpoint, so that a test
can stop, fail or forget any one of these calls and see what is left.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol

__all__ = ["Disk", "LocalDisk"]

_WRITE = 2  # SYNC_FILE_RANGE_WRITE


class Disk(Protocol):
    """What a pull does to a disk. Every method raises OSError; any thread may call."""

    def make_directory(self, path: Path) -> None:
        """Create ``path`` and its parents; nothing when it is there."""
        ...

    def open(self, path: Path, *, create: bool) -> int:
        """A descriptor to read and write a regular file, no link; ``create``: new and empty."""
        ...

    def write(self, fd: int, offset: int, content: memoryview) -> None:
        """Write all of ``content`` at ``offset``."""
        ...

    def begin_sync(self, fd: int, offset: int, length: int) -> None:
        """Let the disk begin with what was written there: ``sync`` then waits for less.

        Raises nothing: what goes wrong is for ``sync`` to tell.
        """
        ...

    def sync(self, fd: int) -> None:
        """Return once what was written through ``fd`` survives a power cut."""
        ...

    def close(self, fd: int) -> None:
        """Give the descriptor back."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Put ``old`` in the place of ``new``."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file; nothing when it is not there."""
        ...

    def remove(self, path: Path) -> None:
        """Remove whatever ``path`` is, with what is in it, following no link."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Return once the names in ``path`` survive a power cut."""
        ...


class LocalDisk:
    """The real disk."""

    def __repr__(self) -> str:
        return "<LocalDisk>"

    def make_directory(self, path: Path) -> None:
        """Create ``path`` and its parents; nothing when it is there."""
        path.mkdir(parents=True, exist_ok=True)

    def open(self, path: Path, *, create: bool) -> int:
        """A descriptor to read and write a regular file, no link; ``create``: new and empty."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags | (os.O_CREAT | os.O_TRUNC if create else 0), 0o666)

    def write(self, fd: int, offset: int, content: memoryview) -> None:
        """Write all of ``content`` at ``offset``."""
        while content:
            written = os.pwrite(fd, content, offset)
            content, offset = content[written:], offset + written

    def begin_sync(self, fd: int, offset: int, length: int) -> None:
        """Let the disk begin with what was written there: ``sync`` then waits for less."""
        begin = _sync_file_range()
        if begin is not None:
            begin(fd, offset, length, _WRITE)

    def sync(self, fd: int) -> None:
        """Return once what was written through ``fd`` survives a power cut."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Give the descriptor back."""
        os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        """Put ``old`` in the place of ``new``."""
        os.replace(old, new)

    def unlink(self, path: Path) -> None:
        """Remove a file; nothing when it is not there."""
        path.unlink(missing_ok=True)

    def remove(self, path: Path) -> None:
        """Remove whatever ``path`` is, with what is in it, following no link."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            self.unlink(path)

    def sync_directory(self, path: Path) -> None:
        """Return once the names in ``path`` survive a power cut."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux alone has it."""
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function
