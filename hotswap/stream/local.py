"""The local checkpoint: whole at every instant that somebody may look.

Rules:

* A journal that is there is carried out before anything else is looked at.
* What the last pull did not write is not trusted: links, files of another shape, a state
  of another format. Such a copy is seeded again.
* Weights in a directory that no pull ever wrote are somebody's, and are left alone.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hotswap.errors import UpdateRejected
from hotswap.stream.disk import Disk
from hotswap.stream.errors import LocalDamaged, StreamError, without_advice
from hotswap.stream.finish import finish, forget
from hotswap.stream.journal import JournalReader, JournalWriter, Outcome
from hotswap.stream.lock import Held, exclusive
from hotswap.stream.log import LOG_FORMAT, Holding, Log, holding_in, holding_of, spelled_log
from hotswap.stream.log_files import OpenLog, clear_leftovers
from hotswap.stream.own_files import not_written, write_own
from hotswap.stream.progress import Tally
from hotswap.stream.small_files import small_digests
from hotswap.stream.state import (
    Reserved,
    State,
    digest_of,
    parsed,
    read_text,
    spelled_out,
    write_durably,
)
from hotswap.stream.stored import StoredTensors, is_text, is_weight_file
from hotswap.stream.strangers import (
    clear_unfinished,
    empty,
    has_strangers,
    make_own,
    own_text,
)
from hotswap.weights.roots import Allowed

__all__ = ["LocalCheckpoint"]

_log = logging.getLogger("hotswap.pull")

_NO_PLACE = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)

# Written over the state of a copy that is of no use: a pull made it, and none may trust it.
_CONDEMNED = State(version="000000", format=0)


class LocalCheckpoint:
    """A directory that pulls write. Every method but ``alone`` wants its exclusive lock held."""

    def __init__(self, directory: Path, *, disk: Disk, pool: Executor, tally: Tally) -> None:
        self.directory = directory
        self.paths: Reserved = Reserved(directory)
        self.disk = disk
        self.pool = pool
        self.tally = tally
        self._lock: Held | None = None

    def __repr__(self) -> str:
        return f"<LocalCheckpoint {self.directory}>"

    @property
    def held(self) -> Holding | None:
        """What the last pull left; None when that is nothing, or is not to be trusted."""
        return holding_in(self.directory)

    @contextmanager
    def alone(self, *, timeout_s: float) -> Iterator[str | None]:
        """Hold the exclusive lock; gives the digest of what was held before it was waited for.

        Raises: as ``exclusive``; OutsideRoots for links, OSError.
        """
        with self._place():
            self.paths.check_own()
            before = holding_of(self.paths, own_text(self.paths))
            if not self.paths.home.exists():
                self.check_free()  # a directory of somebody's gets nothing, not even a lock
            self.disk.make_directory(self.paths.home)
        with exclusive(self.directory, timeout_s=timeout_s) as self._lock:
            yield None if before is None else before.digest

    @contextmanager
    def _place(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_PLACE:
                raise
            raise StreamError(
                f"{str(self.directory)!r:.200} cannot be a directory ({error.strerror}); choose "
                "another local_checkpoint_dir"
            ) from error

    @property
    def is_wanted(self) -> bool:
        """Whether somebody of this process waits for it. Any thread."""
        return self._lock is not None and self._lock.is_wanted

    def recover(self) -> bool:
        """Finish what an earlier pull began; whether there was something. Raises: OSError."""
        recovered = self._recover()
        if self.held is None and parsed(own_text(self.paths)) is not None:
            _log.warning("%s: its log is damaged; it will be seeded again", self.directory)
            self.condemn()
        self._clear_log()
        return recovered

    def _recover(self) -> bool:
        strangers = has_strangers(self.paths)
        clear_unfinished(self.paths, self.disk)
        if strangers:
            _log.warning(
                "%s: something else lay in the place of its state or journal; it will be "
                "seeded again",
                self.directory,
            )
            self.condemn()
        if not self.paths.is_pending:
            return False
        try:
            journal = JournalReader(self.paths.journal)
            try:
                self._check_journal(journal)
                finish(self.paths, journal, self.disk, self.pool, self.tally)
            finally:
                journal.close()
        except LocalDamaged as error:
            _log.warning("%s; it will be seeded again", error)
            self.condemn()
            return False
        _log.info("%s: finished version %s", self.directory, journal.outcome.state.version)
        return True

    def condemn(self) -> None:
        """Write down that the copy is of no use, and forget its journal. Raises: OSError."""
        text = spelled_out(_CONDEMNED)
        write_durably(self.disk, self.paths.state, text, over_directory=True)
        forget(self.paths, self.disk)

    def drop_unnamed(self) -> None:
        """Remove what no log names. Raises: OSError, LocalBusy."""
        self._check_lock()
        self._clear_log()

    def _clear_log(self) -> None:
        """Remove what is of no log that counts."""
        held = self.held
        clear_leftovers(self.paths, self.disk, None if held is None else held.log)

    def open(self, state: State, *, allowed: Allowed | None) -> StoredTensors:
        """The copy that ``state`` speaks of, open. Raises: LocalDamaged."""
        try:
            self._check_own(state.files)
            stored = StoredTensors.at(self.directory, allowed=allowed, with_log=True)
        except UpdateRejected as error:
            raise LocalDamaged(without_advice(error)) from error
        if stored.tensors.keys() != state.tensors.keys():
            stored.close()
            raise LocalDamaged(
                f"{self.directory}: holds {len(stored.tensors)} tensors, but the last pull left "
                f"{len(state.tensors)} others"
            )
        return stored

    def open_log(self, held: Holding, stored: StoredTensors, *, allowed: Allowed | None) -> OpenLog:
        """The log that ``held`` speaks of, open; ``stored`` are the files. Raises: LocalDamaged."""
        return OpenLog(held, stored.lengths, paths=self.paths, allowed=allowed)

    def append(self, log: Log) -> None:
        """Let ``log``, whose versions are durable, count. Raises: OSError, LocalBusy."""
        self._check_lock()
        self._write_marker(log)

    def begin_log(self) -> None:
        """Make the place for versions of a log. Raises: OSError."""
        if not os.path.lexists(self.paths.log_marker):
            self._mark_no_log()
        if not self.paths.log.exists():
            self.disk.make_directory(self.paths.log)
            self.disk.sync_directory(self.paths.home)

    def check_writable(self, names: Iterable[str]) -> None:
        """Raises: LocalDamaged for a file that a journal could not be carried out on."""
        for name in names:
            if not os.access(self.directory / name, os.R_OK | os.W_OK):
                raise LocalDamaged(f"{self.directory / name}: may not be written by this process")

    def check_free(self) -> None:
        """Raises: StreamError when weights lie there that no pull wrote."""
        if self.paths.state.exists() or not self.directory.exists():
            return
        strangers = not_written(self.paths)
        if strangers:
            what = "which no pull wrote"
            if self.paths.home.exists():
                what += f" as it is, and {self.paths.state} is not there to say otherwise"
            raise StreamError(
                f"{self.directory}: holds {strangers[0]}, {what}; remove it, or pull into another "
                "directory"
            )

    def begin_incoming(self) -> Path:
        """An empty directory for the files of a new copy. Raises: OSError."""
        self.drop_copies()
        self.disk.make_directory(self.paths.incoming)
        return self.paths.incoming

    def begin_copies(self, names: Collection[str]) -> None:
        """Make the place for new files ``names``; those that are there stay. Raises: OSError."""
        make_own(self.paths.incoming, self.disk)
        make_own(self.paths.spare, self.disk)
        empty(self.paths.incoming, self.disk, but=names)

    def drop_copies(self) -> None:
        """Give back the room of files that are not in their places. Raises: OSError."""
        for directory in (self.paths.incoming, self.paths.spare):
            empty(directory, self.disk)

    def replace(self, state: State) -> None:
        """Let the files in ``incoming`` take their places, as ``state`` says. Raises: OSError."""
        old = parsed(read_text(self.paths.state))
        there = {name for name in os.listdir(self.directory) if is_weight_file(name)}
        self._check_places(state.files, there)
        write_own(self.paths, self.disk, state.files)
        small = small_digests(self.paths.incoming, state.files)
        state = msgspec.structs.replace(state, small=small)
        stale = (there | set(old.files if old else ())) - set(state.files)
        journal = JournalWriter(self.disk, self.paths.journal)
        self.commit(journal, state, moves=state.files, removes=tuple(sorted(stale)))

    def commit(
        self,
        journal: JournalWriter,
        state: State,
        *,
        files: tuple[str, ...] = (),
        moves: tuple[str, ...] = (),
        removes: tuple[str, ...] = (),
        keeps: tuple[str, ...] = (),
    ) -> None:
        """Make ``journal`` durable, then carry it out. Closes it, whatever happens.

        Raises: OSError; once the journal is durable the next pull finishes it. LocalBusy when
        the lock is no longer the one that was taken, nothing having changed.
        """
        try:
            self._check_lock()
            self._end_log(state)
            before = digest_of(read_text(self.paths.state))
            journal.commit(
                Outcome(
                    before=before,
                    state=state,
                    files=files,
                    moves=moves,
                    removes=removes,
                    keeps=keeps,
                )
            )
        finally:
            journal.close()
        self.tally.through(written=journal.size_bytes)
        self._finish()
        self._clear_log()

    def _end_log(self, state: State) -> None:
        """Remove a log that would count on ``state`` too: the new state is the old one, to the bit.

        The files are whole without it. A log on any other state ends with that state.
        """
        held = self.held
        log = None if held is None else held.log
        if log is not None and digest_of(spelled_out(state)) == log.on:
            self._mark_no_log()

    def _mark_no_log(self) -> None:
        """Say that no version counts, whichever lie there."""
        on = digest_of(read_text(self.paths.state)) or ""
        none = Log(format=LOG_FORMAT, on=on, checkpoint_source_dir="", versions=(), tensors={})
        self._write_marker(none)

    def _write_marker(self, log: Log) -> None:
        text = spelled_log(log)
        write_durably(self.disk, self.paths.log_marker, text, over_directory=True)
        self.tally.through(written=len(text))

    def _check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check()

    def _finish(self) -> None:
        reader = JournalReader(self.paths.journal)
        try:
            try:
                finish(self.paths, reader, self.disk, self.pool, self.tally)
            except OSError as error:
                # What failed is written anew: after a failed fsync nothing else is safe.
                _log.warning("%s: %s; once more", self.directory, error)
                finish(self.paths, reader, self.disk, self.pool, self.tally)
        finally:
            reader.close()

    def _check_journal(self, journal: JournalReader) -> None:
        now = digest_of(read_text(self.paths.state))
        outcome = journal.outcome
        if now not in (outcome.before, digest_of(spelled_out(outcome.state))):
            raise LocalDamaged(
                f"{self.directory}: its state was changed by something else while a pull was "
                "unfinished"
            )
        journal.check()

    def _check_places(self, files: Sequence[str], there: Iterable[str]) -> None:
        """Raises: StreamError for what a journal could not put a file over, or not name."""
        for name in sorted({*files, *there}):
            if not is_text(name):
                raise StreamError(f"{self.directory}: {name!a} is no UTF-8; remove it")
            path = self.directory / name
            if path.is_dir() and not path.is_symlink():
                raise StreamError(
                    f"{path}: is a directory, where the version has a file, or that loaders take "
                    "for weights; remove it, or pull into another directory"
                )

    def _check_own(self, files: Sequence[str]) -> None:
        """A file that is also elsewhere must not be written in place."""
        for name in files:
            path = self.directory / name
            try:
                status = path.lstat()
            except OSError as error:
                raise LocalDamaged(f"{path}: is gone ({error.strerror})") from error
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise LocalDamaged(
                    f"{path}: is a link, and writing to it would change another file"
                )
