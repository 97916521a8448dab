"""Writing changes into the files of a local checkpoint: verified, then by a journal.

In place, or into a second copy of files that then takes their places.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass

import msgspec

from hotswap.errors import UpdateRejected
from hotswap.sparse.cache import PatchCache
from hotswap.sparse.origin import Origin
from hotswap.sparse.recorder import Recorder
from hotswap.stream.apply import Fold
from hotswap.stream.gap_memory import LOGGED
from hotswap.stream.in_place import Changes, InPlace, stage_changes
from hotswap.stream.journal import JournalWriter
from hotswap.stream.journal_room import densely_changed
from hotswap.stream.local import LocalCheckpoint
from hotswap.stream.log import Holding
from hotswap.stream.log_files import OpenLog
from hotswap.stream.origin import origin_of
from hotswap.stream.second_copy import NoRoom, SecondCopy, worth_copying
from hotswap.stream.state import State
from hotswap.stream.stored import StoredTensors

__all__ = ["OpenLocal", "recording", "write_in_files"]

_log = logging.getLogger("hotswap.pull")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLocal:
    """A local checkpoint whose lock is held, with its files and its log open."""

    local: LocalCheckpoint
    held: Holding
    stored: StoredTensors
    log: OpenLog

    def staging(
        self, *, changes: Changes | None = None, recorder: Recorder | None = None
    ) -> InPlace:
        """For changes that follow on what is held; without ``changes`` they stay in a log."""
        return InPlace(
            changes=changes,
            pool=self.local.pool,
            tally=self.local.tally,
            known=self.held.plain.tensors,
            recorder=recorder,
            earlier=self.log.deltas,
            memory=LOGGED if changes is None else None,
        )


@contextmanager
def recording(here: OpenLocal, patches: PatchCache | None) -> Iterator[Recorder | None]:
    """Who hears of the changes of the body, and keeps them once it is through; None for nobody."""
    before = None if patches is None else _origin(here)
    if patches is None or before is None:
        yield None
        return
    recorder = Recorder(patches, before)
    yield recorder
    after = _origin(here)
    if after is not None:
        recorder.keep(after)


def _origin(here: OpenLocal) -> Origin | None:
    """What is in the places of the files now, which need not be those that are open."""
    folder = here.stored.folder
    with ExitStack() as stack:
        try:
            files = [stack.enter_context(folder.open_file(name)) for name in here.stored.files]
        except UpdateRejected:
            return None
        return origin_of(here.local.directory, files)


def write_in_files(
    here: OpenLocal,
    deltas: Fold,
    after: State,
    *,
    patches: PatchCache | None,
    copies: bool = False,
) -> None:
    """Bring the files to ``after``: by what the log has, then by ``deltas``.

    ``after`` has the tensors that are held; those that ``deltas`` change get their new digests.
    ``copies``: files of which most changes are written anew beside the old ones, which stay as
    room for the next time; without that room, and all others, in place. Without ``copies`` only
    files of which so much changes that a journal would be as long, and nothing of the old stays.
    Raises: DeltaDamaged, LocalDamaged, LocalBusy, OSError.
    """
    local = here.local
    everything = {**dict.fromkeys(here.log.names, ()), **deltas}
    local.check_writable(here.stored.files)
    if copies:
        copied = worth_copying(here.stored, everything)
    else:
        all_of = {name: (*here.log.deltas(name), *own) for name, own in everything.items()}
        copied = densely_changed(here.stored, everything, all_of.__getitem__)
    try:
        _write(here, everything, after, patches, copied, keeps=copies)
    except NoRoom as error:
        _log.warning("%s: no second copy, written in place: %s", local.directory, error)
        local.drop_copies()
        _write(here, everything, after, patches, ())
    except BaseException:
        # Once the journal is there, the new files are what it goes on with.
        if not (copies or local.paths.is_pending):
            with suppress(OSError):
                local.drop_copies()
        raise


def _write(
    here: OpenLocal,
    deltas: Fold,
    after: State,
    patches: PatchCache | None,
    copied: tuple[str, ...],
    *,
    keeps: bool = False,
) -> None:
    local = here.local
    with recording(here, patches) as recorder, ExitStack() as stack:
        journal = stack.enter_context(closing(JournalWriter(local.disk, local.paths.journal)))
        copy = None
        if copied:
            copy = stack.enter_context(SecondCopy(local, here.stored, copied, journal=journal))
        staging = here.staging(changes=copy or journal, recorder=recorder)
        files = stage_changes(here.stored, deltas, staging)
        if copy is not None:
            copy.complete(deltas, here.held.plain.tensors)
        new = msgspec.structs.replace(after, tensors={**after.tensors, **staging.digests})
        kept = copied if keeps else ()
        local.commit(journal, new, files=files, moves=copied, keeps=kept)
