"""A local checkpoint in which a reader found damage: the next pull reads it before it trusts it.

``.weight_sync/suspect`` holds the digest of what was held when it was found; on anything else
it does not count. Who reads holds a shared lock only, and may do no more than this.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from hotswap.stream.disk import Disk, LocalDisk
from hotswap.stream.errors import LocalDamaged
from hotswap.stream.log import Holding, holding_in
from hotswap.stream.state import Reserved, read_text

__all__ = ["clear_suspicion", "damage_found", "is_suspect", "suspected"]

_log = logging.getLogger("hotswap.pull")


def suspected(directory: Path) -> bool:
    """Let the next pull into ``directory`` check it; whether that could be written down."""
    try:
        held = holding_in(directory)
        if held is None:
            return True  # no pull trusts it anyway
        disk = LocalDisk()
        fd = disk.open(Reserved(directory).suspect, create=True)
        try:
            disk.write(fd, 0, memoryview(held.digest.encode()))
        finally:
            disk.close(fd)
    except OSError as error:
        _log.warning("%s: that it is damaged cannot be written down (%s)", directory, error)
        return False
    return True


def damage_found(directory: Path, what: str, *, pulls_first: bool) -> LocalDamaged:
    """The error of a reader that found ``what``; the next pull looks for it too.

    ``pulls_first``: the reader's call, made again, begins with a pull.
    """
    noted = suspected(directory)
    pull = "pull it again" if noted else 'pull it again with "check": true (--check)'
    error = LocalDamaged(f"{directory}: {what}; {pull}, which makes the copy anew")
    error.retryable = noted and pulls_first
    return error


def is_suspect(paths: Reserved, held: Holding) -> bool:
    """Whether somebody found damage in what is ``held``."""
    try:
        return read_text(paths.suspect) == held.digest.encode()
    except OSError:
        return False  # what cannot be read as a file, no reader wrote


def clear_suspicion(paths: Reserved, disk: Disk) -> None:
    """Forget it, once a pull has looked. Raises: OSError."""
    if os.path.lexists(paths.suspect):
        disk.remove(paths.suspect)
