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

from hotswap.niceness import give_way as giving_way
from hotswap.sparse.cache import PatchCache
from hotswap.stream.chain import Chain
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
from hotswap.stream.look import FirstLook, PreRead
from hotswap.stream.objects import Objects
from hotswap.stream.place import place_of
from hotswap.stream.places import Places
from hotswap.stream.progress import Progress, Tally
from hotswap.stream.report import PullMode, PullReport
from hotswap.stream.state import Reserved, digest_of, parsed, read_text
from hotswap.stream.strangers import own_text
from hotswap.weights.roots import Allowed

__all__ = ["pull"]

_log = logging.getLogger("hotswap.pull")
_MAX_THREADS = 8


def pull(
    local_checkpoint_dir: Path,
    source_dir: str | Path | Objects,
    target_version: int,
    *,
    base_dir: Path,
    local_allowed: Allowed | None = None,
    source_allowed: Allowed | None = None,
    threads: int | None = None,
    lock_timeout_s: float = 3600.0,
    disk: Disk | None = None,
    progress: Callable[[Progress], None] | None = None,
    base_digest: str | None = None,
    pre_read: PreRead | None = None,
    give_way: bool = False,
    patches: PatchCache | None = None,
) -> PullReport:
    """Bring ``local_checkpoint_dir`` to ``target_version``; a no-op when it is there.

    ``base_dir`` is version 0: the checkpoint that the server was started with, never one
    that an update moved to; with ``base_digest`` (of a ``RecordedBase``) another one is
    refused. Blocks; pulls into one directory wait for each other, whoever runs them.
    ``progress`` is called from worker threads. ``pre_read`` is called once before the
    source is looked at, and not by who waited for another's pull of the same version.
    ``give_way``: the threads are nicer than the rest of the process, as beside serving.
    ``patches`` gets what a pull in place changed, for live weights that are at where it began.

    Raises: StreamError, whose class says what is wrong and whose ``local_version`` says
    which whole version the directory still holds.
    """
    places = Places(
        local=Path(local_checkpoint_dir),
        source=place_of(source_dir),
        base=Path(base_dir),
        local_allowed=local_allowed,
        source_allowed=source_allowed,
    )
    _check_system()
    places.check_local(target_version)
    with _explained(places.local), _threads(threads, give_way=give_way) as pool:
        places.check_source(target_version)
        job = Job(
            places=places,
            target=target_version,
            local=LocalCheckpoint(
                places.local, disk=disk or LocalDisk(), pool=pool, tally=Tally(progress)
            ),
            look=FirstLook(pre_read, places.source, target_version),
            base_digest=base_digest,
            patches=patches,
        )
        with job.local.alone(timeout_s=lock_timeout_s) as before:
            report = _done_meanwhile(job, before) or bring_forward(job)
    _log.info("%s: %s", places.local, report)
    return report


def _threads(threads: int | None, *, give_way: bool) -> Executor:
    count = threads or min(_MAX_THREADS, os.cpu_count() or 1)
    begin = giving_way if give_way else None
    return ThreadPoolExecutor(count, "hotswap-pull", initializer=begin)


def _check_system() -> None:
    if not hasattr(os, "O_PATH"):
        raise StreamError(
            "published versions are opened through O_PATH, which this operating system lacks; "
            "pull on Linux"
        )


def _done_meanwhile(job: Job, before: str | None) -> PullReport | None:
    """What to say when another pull did the work while this one waited; None when none did.

    It had its own look at the source, and what it left is not looked at again.
    """
    paths = job.local.paths
    text = own_text(paths)
    state = parsed(text)
    if state is None or digest_of(text) == before or paths.is_pending:
        return None
    source = job.source_path if job.target else None
    wanted = job.target, job.base_path, source
    if (state.number, state.base_checkpoint_dir, state.checkpoint_source_dir) != wanted:
        return None
    if job.base_digest not in (None, state.base_digest):
        return None
    return job.report(PullMode.NOOP, Chain(start=job.target, deltas=()))


@contextmanager
def _explained(local: Path) -> Iterator[None]:
    """Every failure is a StreamError that says which version is there."""
    try:
        with raised_as(StreamError):
            yield
    except OSError as error:
        raise _of_the_disk(local, error) from error
    except StreamError as error:
        _told(local, error)
        raise


def _of_the_disk(local: Path, error: OSError) -> StreamError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        full = f"{local}: no room for the version ({error.strerror}); make room and pull again"
        return _told(local, DiskFull(full))
    return _told(local, LocalDiskFailed(f"{local}: {error}; look after the disk and pull again"))


def _told(local: Path, error: StreamError) -> StreamError:
    """``error``, which now says what the local checkpoint holds."""
    damaged = isinstance(error, LocalDamaged)
    version = error.local_version = None if damaged else _whole_version(local)
    if Reserved(local).is_pending:
        error.holds = f"{local} is half written, and the next pull finishes it"
    elif version is None:
        error.holds = f"{local} holds no whole version"
    else:
        error.holds = f"{local} holds version {version}, whole"
    return error


def _whole_version(local: Path) -> int | None:
    paths = Reserved(local)
    try:
        state = parsed(read_text(paths.state))
        return None if state is None or paths.is_pending else state.number
    except OSError:
        return None
