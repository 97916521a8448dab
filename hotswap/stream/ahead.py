"""The new state, written before the journal counts: nothing that comes after needs room.

Rule: a disk that is full lets a version be written whole or not begun at all.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from hotswap.stream.disk import Disk
from hotswap.stream.state import State, spelled_out, unfinished, write_durably

__all__ = ["STATE", "put_state", "written_ahead"]

STATE = "state.json"
"""Lies beside the journal."""


def written_ahead(disk: Disk, place: Path, state: State) -> bool:
    """Write ``state`` beside ``place``, durably; whether that was done. Raises: OSError.

    Not for a first copy, which has no state: there nothing is held that could be left half
    written, and a new state without an old one would be taken for a state that was removed.
    """
    if not _is_own(place):
        return False
    there = unfinished(place)
    try:
        fd = disk.open(there, create=True)
        try:
            disk.write(fd, 0, memoryview(spelled_out(state)))
            disk.sync(fd)
        finally:
            disk.close(fd)
    except BaseException:
        with suppress(OSError):
            disk.unlink(there)
        raise
    return True


def put_state(disk: Disk, place: Path, state: State) -> None:
    """Put ``state`` in its ``place``, in the room that was taken for it. Raises: OSError."""
    there, text = unfinished(place), spelled_out(state)
    if not _is_own(there) or there.stat().st_size != len(text):
        write_durably(disk, place, text)
        return
    fd = disk.open(there, create=False)
    try:
        # Over what is there: after a failed sync, or a pull cut short, that may not be durable.
        disk.write(fd, 0, memoryview(text))
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.rename(there, place)
    disk.sync_directory(place.parent)


def _is_own(path: Path) -> bool:
    """Whether ``path`` is a file that is nowhere else."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1
