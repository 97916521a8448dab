"""``pull``: bring a local checkpoint to a published version.

Rule: the way is found, read and verified whole before a byte of the checkpoint changes;
then the journal makes the rest one step.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from hotswap.stream.disk import Disk, LocalDisk
from hotswap.stream.errors import (
    DiskFull,
    LocalDamaged,
    LocalDiskFailed,
    StreamError,
    raised_as,
)
from hotswap.stream.forward import bring_forward
from hotswap.stream.job import Job
from hotswap.stream.local import LocalCheckpoint
from hotswap.stream.lock import exclusive
from hotswap.stream.places import Places
from hotswap.stream.progress import Progress, Tally
from hotswap.stream.report import PullReport
from hotswap.stream.state import Reserved, parsed, read_text
from hotswap.weights.roots import Allowed

__all__ = ["pull"]

_log = logging.getLogger("hotswap.pull")
_MAX_THREADS = 8


def pull(
    local_checkpoint_dir: Path,
    source_dir: Path,
    target_version: int,
    *,
    base_dir: Path,
    local_allowed: Allowed | None = None,
    source_allowed: Allowed | None = None,
    threads: int | None = None,
    lock_timeout_s: float = 3600.0,
    disk: Disk | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> PullReport:
    """Bring ``local_checkpoint_dir`` to ``target_version``; a no-op when it is there.

    ``base_dir`` is version 0: the checkpoint that the server was started with, never one
    that an update moved to. Blocks; pulls into one directory wait for each other, whoever
    runs them. ``progress`` is called from worker threads.

    Raises: StreamError, whose class says what is wrong and whose ``local_version`` says
    which whole version the directory still holds.
    """
    places = Places(
        local=Path(local_checkpoint_dir),
        source=Path(source_dir),
        base=Path(base_dir),
        local_allowed=local_allowed,
        source_allowed=source_allowed,
    )
    _check_system()
    places.check(target_version)
    tally, disk = Tally(progress), disk or LocalDisk()
    count = threads or min(_MAX_THREADS, os.cpu_count() or 1)
    with (
        _explained(places.local),
        ThreadPoolExecutor(count, thread_name_prefix="hotswap-pull") as pool,
    ):
        disk.make_directory(Reserved(places.local).home)
        with exclusive(places.local, timeout_s=lock_timeout_s):
            report = _locked(places, target_version, disk=disk, pool=pool, tally=tally)
    _log.info("%s: %s", places.local, report)
    return report


def _check_system() -> None:
    if not hasattr(os, "O_PATH"):
        raise StreamError(
            "published versions are opened through O_PATH, which this operating system lacks; "
            "pull on Linux"
        )


def _locked(places: Places, target: int, *, disk: Disk, pool: Executor, tally: Tally) -> PullReport:
    local = LocalCheckpoint(places.local, disk=disk, pool=pool, tally=tally)
    return bring_forward(Job(places=places, target=target, local=local))


@contextmanager
def _explained(local: Path) -> Iterator[None]:
    """Every failure is a StreamError that says which version is there."""
    try:
        with raised_as(StreamError):
            yield
    except OSError as error:
        raise _of_the_disk(local, error) from error
    except StreamError as error:
        damaged = isinstance(error, LocalDamaged)
        error.local_version = None if damaged else _whole_version(local)
        raise


def _of_the_disk(local: Path, error: OSError) -> StreamError:
    half = Reserved(local).journal.exists()
    kept = "is half written, and the next pull finishes it" if half else "is as it was"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        found: StreamError = DiskFull(
            f"{local}: no room for the version ({error.strerror}); the local checkpoint {kept}; "
            "make room and pull again"
        )
    else:
        found = LocalDiskFailed(
            f"{local}: {error}; the local checkpoint {kept}; look after the disk and pull again"
        )
    found.local_version = _whole_version(local)
    return found


def _whole_version(local: Path) -> int | None:
    paths = Reserved(local)
    try:
        state = parsed(read_text(paths.state))
        return None if state is None or paths.journal.exists() else state.number
    except OSError:
        return None
