"""``materialize``: write the versions of a log into the files that it is on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from hotswap.sparse.cache import PatchCache
from hotswap.stream.disk import Disk, LocalDisk
from hotswap.stream.errors import LocalBusy, LocalDamaged, StreamError
from hotswap.stream.explained import explained
from hotswap.stream.in_files import OpenLocal, write_in_files
from hotswap.stream.in_place import STAGING
from hotswap.stream.local import LocalCheckpoint
from hotswap.stream.log import Holding
from hotswap.stream.place import local_directory
from hotswap.stream.progress import Progress, Tally
from hotswap.stream.pull import pull_threads
from hotswap.stream.report import PullMode, PullReport
from hotswap.stream.state import Reserved
from hotswap.stream.suspect import damage_found
from hotswap.weights.roots import Allowed

__all__ = ["materialize"]

_log = logging.getLogger("hotswap.pull")


def materialize(
    local_checkpoint_dir: Path,
    *,
    allowed: Allowed | None = None,
    threads: int | None = None,
    lock_timeout_s: float = 3600.0,
    disk: Disk | None = None,
    progress: Callable[[Progress], None] | None = None,
    give_way: bool = False,
    patches: PatchCache | None = None,
    stop: Callable[[], bool] | None = None,
) -> PullReport:
    """Bring the files of a local checkpoint to the version that it holds; a no-op when they are.

    As a pull in place does it, from the log alone: verified in memory, then by a journal, so
    that it may be cut short anywhere. It needs no source and no base. Blocks. ``stop`` is for what
    runs in the background: it ends, with everything as it was, when that says so, or somebody of
    this process waits for the directory, before the files are written.

    Raises: StreamError; LocalBusy when it was stopped; LocalDamaged when the copy is of no use
    until a pull has made it anew.
    """
    given = local_directory(local_checkpoint_dir, "the local checkpoint")
    directory = Path(os.path.abspath(given))
    if not Reserved(directory).home.is_dir():
        raise StreamError(
            f"{directory}: no pull keeps a local checkpoint there, and nothing is to be written "
            "into its files; name the directory that versions were pulled into"
        )

    def look(step: Progress) -> None:
        if stop is not None and step.phase == STAGING and (local.is_wanted or stop()):
            raise LocalBusy(f"{directory}: its log stays as it is, for somebody waits")
        if progress is not None:
            progress(step)

    with explained(directory), pull_threads(threads, give_way=give_way) as pool:
        local = LocalCheckpoint(directory, disk=disk or LocalDisk(), pool=pool, tally=Tally(look))
        with local.alone(timeout_s=lock_timeout_s):
            recovered = local.recover()
            held = local.held
            if held is None:
                raise LocalDamaged(
                    f"{directory}: nothing that is to be trusted says what it holds; pull into it"
                )
            if held.log is not None:
                try:
                    _write(local, held, allowed, patches)
                except LocalDamaged as error:
                    told = damage_found(directory, str(error), pulls_first=False)
                    raise told from error
    report = _report(local, held, recovered)
    _log.info("%s: %s", directory, report)
    return report


def _write(
    local: LocalCheckpoint, held: Holding, allowed: Allowed | None, patches: PatchCache | None
) -> None:
    with (
        local.open(held.plain, allowed=allowed) as stored,
        local.open_log(held, stored, allowed=allowed) as log,
    ):
        here = OpenLocal(local=local, held=held, stored=stored, log=log)
        write_in_files(here, {}, held.state, patches=patches)


def _report(local: LocalCheckpoint, held: Holding, recovered: bool) -> PullReport:
    versions = tuple(int(version.version) for version in held.versions)
    mode = PullMode.RECOVERED if recovered else PullMode.NOOP
    if versions:
        mode = PullMode.DELTA if len(versions) == 1 else PullMode.FOLD
    return PullReport(
        mode=mode,
        version=held.state.number,
        start=held.plain.number,
        versions=versions,
        read_bytes=local.tally.read_bytes,
        written_bytes=local.tally.written_bytes,
        seconds=dict(local.tally.seconds),
    )
