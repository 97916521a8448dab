"""What numba compiled, kept for later processes: one process at a time reads or writes it.

numba keeps an index and a file for each kind of arguments, and writes one after the other. Two
processes that compile a loop at the same time may take the same name for two kinds, and one that
loads meanwhile finds under a kind what was compiled for another one, or of an earlier version: it
would end in the middle of memory. A lock on the directory is enough; whoever does not get it, as
another one hangs with it, goes on all the same.
"""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["share_cache"]

_PATIENCE_S = 10.0
"""Reading and writing take milliseconds."""

_LOOK_AGAIN_S = 0.005


def share_cache(ready: Any) -> None:
    """Let other processes wait while what is kept of ``ready``, which numba compiles, is read or
    written. Nothing where numba keeps nothing."""
    cache = getattr(ready, "_cache", None)
    directory, fcntl = getattr(cache, "cache_path", None), _fcntl()
    if directory is None or fcntl is None:
        return
    for name in ("load_overload", "save_overload"):
        setattr(cache, name, _alone(getattr(cache, name), Path(directory), fcntl))


def _fcntl() -> Any | None:
    """None where the operating system has no locks: it goes without."""
    try:
        return importlib.import_module("fcntl")
    except ImportError:
        return None


def _alone(step: Callable[..., Any], directory: Path, fcntl: Any) -> Callable[..., Any]:
    @functools.wraps(step)
    def alone(*given: Any) -> Any:
        with _locked(directory, fcntl):
            return step(*given)

    return alone


@contextmanager
def _locked(directory: Path, fcntl: Any) -> Iterator[None]:
    """Without the lock where there is no directory yet, or file system or user have none."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        is_locked = _has_lock(fd, fcntl)
        try:
            yield
        finally:
            if is_locked:
                # To close it would not do: a child that was forked meanwhile has it as well.
                fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _has_lock(fd: int, fcntl: Any) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            # Another process's lock: it tells nobody when it is free, and to block has no end.
            time.sleep(_LOOK_AGAIN_S)
        except OSError:
            return False
        else:
            return True
