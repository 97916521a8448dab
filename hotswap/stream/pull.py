"""``pull``: bring a local checkpoint to a published version.

Rule: the way is found, read and verified whole before a byte of the checkpoint changes;
then the journal makes the rest one step.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from hotswap.niceness import give_way as giving_way
from hotswap.sparse.cache import PatchCache
from hotswap.stream.append import LogLimits
from hotswap.stream.chain import Chain
from hotswap.stream.disk import Disk, LocalDisk
from hotswap.stream.errors import StreamError
from hotswap.stream.explained import explained
from hotswap.stream.forward import bring_forward
from hotswap.stream.job import Job
from hotswap.stream.local import LocalCheckpoint
from hotswap.stream.log import holding_of
from hotswap.stream.look import FirstLook, PreRead
from hotswap.stream.objects import Objects
from hotswap.stream.place import local_directory, place_of
from hotswap.stream.places import Places
from hotswap.stream.progress import Progress, Tally
from hotswap.stream.report import Keep, PullMode, PullReport
from hotswap.stream.strangers import own_text
from hotswap.stream.suspect import is_suspect
from hotswap.weights.roots import Allowed

__all__ = ["pull", "pull_threads"]

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
    keep: Keep = Keep.FILES,
    limits: LogLimits | None = None,
    check: bool = False,
) -> PullReport:
    """Bring ``local_checkpoint_dir`` to ``target_version``; a no-op when it is there.

    ``base_dir`` is version 0: the checkpoint that the server was started with, never one
    that an update moved to; with ``base_digest`` (of a ``RecordedBase``) another one is
    refused. Blocks; pulls into one directory wait for each other, whoever runs them.
    ``progress`` is called from worker threads. ``pre_read`` is called once before the
    source is looked at, and not by who waited for another's pull of the same version.
    ``give_way``: the threads are nicer than the rest of the process, as beside serving.
    ``patches`` gets what a pull in place changed, for live weights that are at where it began.
    ``keep``: whether deltas go into the files, into a second copy of them, or into a log beside
    them, within ``limits``.
    ``check``: read all of a copy first, also one that is at the target, and make one anew in
    which a tensor is not what the last pull left; without it what no delta changes is not read.

    Raises: StreamError, whose class says what is wrong and whose ``local_version`` says
    which whole version the directory still holds.
    """
    places = Places(
        local=local_directory(local_checkpoint_dir, "the local checkpoint"),
        source=place_of(source_dir),
        base=local_directory(base_dir, "the base checkpoint"),
        local_allowed=local_allowed,
        source_allowed=source_allowed,
    )
    _check_system()
    places.check_local(target_version)
    with explained(places.local), pull_threads(threads, give_way=give_way) as pool:
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
            limits=(limits or LogLimits()) if keep is Keep.LOG else None,
            copies=keep is Keep.COPIES,
            check=check,
        )
        with job.local.alone(timeout_s=lock_timeout_s) as before:
            report = _done_meanwhile(job, before) or bring_forward(job)
    _log.info("%s: %s", places.local, report)
    return report


def pull_threads(threads: int | None, *, give_way: bool) -> Executor:
    """What shares out the tensors: ``threads`` of them, one a processor without."""
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
    held = holding_of(paths, own_text(paths))
    if held is None or held.digest == before or paths.is_pending or job.is_to_fold(held):
        return None
    if job.check or is_suspect(paths, held):
        return None
    state = held.state
    source = job.source_path if job.target else None
    wanted = job.target, job.base_path, source
    if (state.number, state.base_checkpoint_dir, state.checkpoint_source_dir) != wanted:
        return None
    if job.base_digest not in (None, state.base_digest):
        return None
    return job.report(PullMode.NOOP, Chain(start=job.target, deltas=()))
