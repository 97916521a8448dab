"""What lies where ``.weight_sync/`` has something of its own, and no pull put there.

Rule: it is removed and nothing is followed; else a directory in a file's place would make
every pull fail until a person comes. What such a thing stood for is lost, and a copy whose
state or journal it was is of no use.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from hotswap.stream.disk import Disk
from hotswap.stream.state import Reserved, read_text, unfinished

__all__ = ["clear_unfinished", "empty", "has_strangers", "make_own", "own_text"]


def has_strangers(paths: Reserved) -> bool:
    """Whether something else is where the state or the journal belongs. Raises: OSError."""
    if any(_is_other(path, stat.S_ISREG) for path in (paths.state, paths.journal)):
        return True
    # One was removed, and the pull that did it was cut short before it had written its own.
    gone = not os.path.lexists(paths.state) and not paths.is_pending
    return gone and os.path.lexists(unfinished(paths.state))


def own_text(paths: Reserved) -> bytes | None:
    """The state as a file says it; None without one. Raises: OSError."""
    return None if has_strangers(paths) else read_text(paths.state)


def clear_unfinished(paths: Reserved, disk: Disk) -> None:
    """Remove what would be in the way of new files, and the room that a killed pull took.

    A link there leads to a file that a pull must not write into. Raises: OSError.
    """
    if os.path.lexists(unfinished(paths.journal)):
        disk.remove(unfinished(paths.journal))
    state = unfinished(paths.state)
    if not os.path.lexists(state):
        return
    # Written for a journal that never counted. Without a state it says that there was one.
    is_left = os.path.lexists(paths.state) and not paths.is_pending
    if is_left or _is_other(state, stat.S_ISREG) or state.lstat().st_nlink != 1:
        disk.remove(state)


def empty(directory: Path, disk: Disk, *, but: Collection[str] = ()) -> None:
    """Remove what is in ``incoming`` or ``spare``, ``but`` these names. Raises: OSError."""
    if _is_other(directory, stat.S_ISDIR):
        disk.remove(directory)
    elif directory.exists():
        for leftover in sorted(directory.iterdir()):
            if leftover.name not in but:
                disk.remove(leftover)


def make_own(directory: Path, disk: Disk) -> None:
    """Make ``directory``, in whose place nothing else may be. Raises: OSError."""
    if _is_other(directory, stat.S_ISDIR):
        disk.remove(directory)
    if not directory.exists():
        disk.make_directory(directory)


def _is_other(path: Path, wanted: Callable[[int], bool]) -> bool:
    try:
        return not wanted(path.lstat().st_mode)
    except FileNotFoundError:
        return False
