"""Writing changes into the files of a local checkpoint: verified, then by a journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import msgspec

from hotswap.sparse.cache import PatchCache
from hotswap.sparse.recorder import Recorder
from hotswap.stream.apply import Fold
from hotswap.stream.gap_memory import LOGGED
from hotswap.stream.in_place import InPlace, stage_changes
from hotswap.stream.journal import JournalWriter
from hotswap.stream.local import LocalCheckpoint
from hotswap.stream.log import Holding
from hotswap.stream.log_files import OpenLog
from hotswap.stream.origin import origin_of
from hotswap.stream.state import State
from hotswap.stream.stored import StoredTensors

__all__ = ["OpenLocal", "recording", "write_in_place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLocal:
    """A local checkpoint whose lock is held, with its files and its log open."""

    local: LocalCheckpoint
    held: Holding
    stored: StoredTensors
    log: OpenLog

    def staging(
        self, *, journal: JournalWriter | None = None, recorder: Recorder | None = None
    ) -> InPlace:
        """For changes that follow on what is held; without ``journal`` they stay in a log."""
        return InPlace(
            journal=journal,
            pool=self.local.pool,
            tally=self.local.tally,
            known=self.held.plain.tensors,
            recorder=recorder,
            earlier=self.log.deltas,
            memory=LOGGED if journal is None else None,
        )


@contextmanager
def recording(here: OpenLocal, patches: PatchCache | None) -> Iterator[Recorder | None]:
    """Who hears of the changes of the body, and keeps them once it is through; None for nobody."""
    directory, files = here.local.directory, [one.file for one in here.stored.files.values()]
    before = None if patches is None else origin_of(directory, files)
    if patches is None or before is None:
        yield None
        return
    recorder = Recorder(patches, before)
    yield recorder
    after = origin_of(directory, files)
    if after is not None:
        recorder.keep(after)


def write_in_place(
    here: OpenLocal, deltas: Fold, after: State, *, patches: PatchCache | None
) -> None:
    """Bring the files to ``after``: by what the log has, then by ``deltas``.

    ``after`` has the tensors that are held; those that ``deltas`` change get their new digests.
    Raises: DeltaDamaged, LocalDamaged, LocalBusy, OSError.
    """
    local = here.local
    local.check_writable(here.stored.files)
    with recording(here, patches) as recorder:
        journal = JournalWriter(local.disk, local.paths.journal)
        with closing(journal):
            staging = here.staging(journal=journal, recorder=recorder)
            everything = {**dict.fromkeys(here.log.names, ()), **deltas}
            files = stage_changes(here.stored, everything, staging)
            new = {**after.tensors, **staging.digests}
            local.commit(journal, msgspec.structs.replace(after, tensors=new), files=files)
