"""Who may touch a local checkpoint: one pull, or any number that read it.

``.weight_sync/lock`` is a flock: it ends with the process that holds it, and serves
threads and processes of one host alike.
"""

from __future__ import annotations

import errno
import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hotswap.stream.errors import LocalBusy, PullPending, StreamError
from hotswap.stream.state import Reserved

__all__ = ["exclusive", "reading"]

_POLL_S = 0.02


@contextmanager
def exclusive(directory: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold ``directory`` (with its ``.weight_sync``) alone, as a pull does.

    Raises: LocalBusy when another pull or reader holds it for longer than ``timeout_s``;
    StreamError when the system has no flock.
    """
    with _held(Reserved(directory).lock, shared=False, timeout_s=timeout_s):
        yield


@contextmanager
def reading(directory: Path, *, timeout_s: float = 600.0) -> Iterator[None]:
    """Keep pulls out of ``directory`` while it is read; others may read as well.

    A directory that no pull ever wrote needs no lock and gets none. Raises: PullPending
    when a pull was cut short half-way; StreamError as ``exclusive``.
    """
    paths = Reserved(directory)
    if not paths.lock.exists():
        yield
        return
    with _held(paths.lock, shared=True, timeout_s=timeout_s):
        if paths.journal.exists():
            raise PullPending(
                f"{directory}: a pull was cut short after it had begun to write, and the files "
                "are of two versions; pull again, which finishes it"
            )
        yield


@contextmanager
def _held(path: Path, *, shared: bool, timeout_s: float) -> Iterator[None]:
    flags = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    try:
        _take(fd, path, shared=shared, timeout_s=timeout_s)
        yield
    finally:
        os.close(fd)


def _take(fd: int, path: Path, *, shared: bool, timeout_s: float) -> None:
    flock, how = _flock(path, shared)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            flock(fd, how)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StreamError(
                    f"{path} cannot be locked ({error.strerror}); put the local checkpoint on a "
                    "file system with flock"
                ) from error
        if time.monotonic() >= deadline:
            raise LocalBusy(
                f"{path} was held by another pull or reader for {timeout_s:g} s; pull again "
                "when it is done"
            )
        # flock waits for ever or not at all, and callers bring a thread that may block.
        time.sleep(_POLL_S)


def _flock(path: Path, shared: bool) -> tuple[Callable[[int, int], None], int]:
    try:
        fcntl = importlib.import_module("fcntl")
        flock = fcntl.flock
    except (ImportError, AttributeError) as error:
        raise StreamError(
            f"{path} cannot be locked: this operating system has no flock, and pulls could "
            "tear the checkpoint; run on Linux or macOS"
        ) from error
    return flock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
