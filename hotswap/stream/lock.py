"""Who may touch a local checkpoint: one pull, or any number that read it.

``.weight_sync/lock`` is a flock: it ends with the process that holds it, and serves
threads and processes of one host alike.
"""

from __future__ import annotations

import errno
import importlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hotswap.stream.errors import LocalBusy, LocalDiskFailed, PullPending, StreamError
from hotswap.stream.log import check_trusted
from hotswap.stream.state import Reserved

__all__ = ["Held", "exclusive", "reading"]

_POLL_S = 0.02


class Held:
    """A lock that is held, for as long as its file is the one that others would take."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    def __repr__(self) -> str:
        return f"<Held {self._path}>"

    @property
    def counts(self) -> bool:
        """False once the file was removed or replaced. Raises: OSError."""
        try:
            there = self._path.lstat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._fd))

    @property
    def is_wanted(self) -> bool:
        """Whether somebody of this process waits for a lock of it. Any thread."""
        with _waiting_lock:
            return _waiting[_file_of(self._fd)] > 0

    def check(self) -> None:
        """Raises: LocalBusy when somebody else may hold a lock of that name by now."""
        if not self.counts:
            raise LocalBusy(
                f"{self._path} was removed or replaced while a pull held it, and another pull may "
                "run beside it; leave .weight_sync alone and pull again"
            )


@contextmanager
def exclusive(directory: Path, *, timeout_s: float) -> Iterator[Held]:
    """Hold ``directory`` (with its ``.weight_sync``) alone, as a pull does.

    Raises: LocalBusy when another pull or reader holds it for longer than ``timeout_s``;
    LocalDiskFailed when there is no file to lock, StreamError when the system has no flock.
    """
    path = Reserved(directory).lock
    with suppress(OSError):
        os.rmdir(path)  # a directory that somebody put there; a file is left alone
    with _held(path, shared=False, timeout_s=timeout_s) as held:
        yield held


@contextmanager
def reading(directory: Path, *, timeout_s: float = 600.0) -> Iterator[None]:
    """Keep pulls out of ``directory`` while it is read; others may read as well.

    A directory that no pull ever wrote needs no lock and gets none. Raises: PullPending
    when a pull was cut short half-way, LocalDamaged when what is there is of no use until a pull
    has made it anew; StreamError as ``exclusive``.
    """
    paths = Reserved(directory)
    if not os.path.lexists(paths.lock):
        _check_whole(paths)
        yield
        return
    with _held(paths.lock, shared=True, timeout_s=timeout_s):
        _check_whole(paths)
        yield


def _check_whole(paths: Reserved) -> None:
    if paths.is_pending:
        raise PullPending(
            f"{paths.directory}: a pull was cut short after it had begun to write, and the files "
            "are of two versions; pull again, which finishes it"
        )
    check_trusted(paths.directory)


@contextmanager
def _held(path: Path, *, shared: bool, timeout_s: float) -> Iterator[Held]:
    deadline, counts = time.monotonic() + timeout_s, False
    while not counts:
        fd = _opened(path, shared=shared)
        try:
            _take(fd, path, shared=shared, timeout_s=timeout_s, deadline=deadline)
            held = Held(path, fd)
            # Somebody may have put another file there meanwhile, which another pull takes.
            counts = held.counts
            if counts:
                yield held
        finally:
            os.close(fd)


def _opened(path: Path, *, shared: bool) -> int:
    flags = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise LocalDiskFailed(
            f"{path} cannot be opened ({error.strerror}), and without that lock a pull could "
            "change what is read; it has to be a file that this process may open, or not be there"
        ) from error


def _take(fd: int, path: Path, *, shared: bool, timeout_s: float, deadline: float) -> None:
    if _takes(fd, path, shared):
        return
    with _waits_for(fd):
        while time.monotonic() < deadline:
            # flock waits for ever or not at all, and callers bring a thread that may block.
            time.sleep(_POLL_S)
            if _takes(fd, path, shared):
                return
    raise LocalBusy(
        f"{path} was held by another pull or reader for {timeout_s:g} s; pull again when it is done"
    )


def _takes(fd: int, path: Path, shared: bool) -> bool:
    flock, how = _flock(path, shared)
    try:
        flock(fd, how)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise StreamError(
            f"{path} cannot be locked ({error.strerror}); put the local checkpoint on a "
            "file system with flock"
        ) from error
    return True


_File = tuple[int, int]
_waiting_lock = threading.Lock()
_waiting = Counter[_File]()
"""How many of this process wait for each lock's file."""


def _file_of(fd: int) -> _File:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


@contextmanager
def _waits_for(fd: int) -> Iterator[None]:
    file = _file_of(fd)
    with _waiting_lock:
        _waiting[file] += 1
    try:
        yield
    finally:
        with _waiting_lock:
            _waiting[file] -= 1
            if not _waiting[file]:
                del _waiting[file]


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
