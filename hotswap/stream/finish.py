"""Carrying out a journal: from the first changed byte to the new state, any number of times."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

from hotswap.stream.ahead import put_state
from hotswap.stream.disk import Disk
from hotswap.stream.errors import LocalDamaged
from hotswap.stream.journal import JournalReader, Record, chunk_room
from hotswap.stream.log_files import clear_leftovers
from hotswap.stream.parallel import run_all
from hotswap.stream.progress import Tally
from hotswap.stream.state import Reserved
from hotswap.stream.strangers import empty, make_own

__all__ = ["finish", "forget"]

_BATCH = 4096  # records in memory: a terabyte has half a million
_GROUP = 4  # records that a thread takes at once
_NO_FILE = (errno.ENOENT, errno.EISDIR, errno.ELOOP, errno.ENXIO)


def finish(
    paths: Reserved, journal: JournalReader, disk: Disk, pool: Executor, tally: Tally
) -> None:
    """Make the directory what ``journal`` says, durably, and forget the journal.

    Raises: LocalDamaged when a file that it changes is gone or too short; OSError, after
    which it can be called again.
    """
    _place_files(paths, journal, disk)
    _write_records(paths, journal, disk, pool, tally)
    disk.sync_directory(paths.directory)
    put_state(disk, paths.state, journal.outcome.state)
    # While the journal keeps readers away: a log of the files as they were would be damage.
    clear_leftovers(paths, disk, None)
    forget(paths, disk)


def forget(paths: Reserved, disk: Disk) -> None:
    """Remove the journal and what was staged for it. Raises: OSError."""
    disk.remove(paths.journal)
    disk.sync_directory(paths.home)
    empty(paths.incoming, disk)


def _place_files(paths: Reserved, journal: JournalReader, disk: Disk) -> None:
    keeps = set(journal.outcome.keeps)
    if keeps:
        make_own(paths.spare, disk)
    for name in journal.outcome.moves:
        incoming, place = paths.incoming / name, paths.directory / name
        if incoming.is_file() and not incoming.is_symlink():
            if name in keeps:
                _keep(place, paths.spare / name, disk)
            disk.rename(incoming, place)
        elif not place.exists():
            raise LocalDamaged(f"{place}: is gone, and so is its new copy")
    for name in journal.outcome.removes:
        disk.unlink(paths.directory / name)


def _keep(place: Path, spare: Path, disk: Disk) -> None:
    """Make what is in ``place`` the spare, unless that was done before."""
    if not os.path.lexists(place):
        return
    if os.path.lexists(spare) and not spare.is_file():
        disk.remove(spare)
    disk.rename(place, spare)


def _write_records(
    paths: Reserved, journal: JournalReader, disk: Disk, pool: Executor, tally: Tally
) -> None:
    numbers, total = set[int](), 0
    for record in journal.records():
        numbers.add(record.file)
        total += record.span
    with ExitStack() as stack:
        fds = dict[int, int]()
        for number in sorted(numbers):
            fds[number] = _open(paths, journal.outcome.files[number], disk)
            stack.callback(disk.close, fds[number])
        with tally.phase("write", total_bytes=total):
            records = journal.records()
            while batch := list(islice(records, _BATCH)):
                groups = [batch[at : at + _GROUP] for at in range(0, len(batch), _GROUP)]
                run_all(
                    pool,
                    [
                        (_size_of(group), partial(_write, group, journal, fds, disk, tally))
                        for group in groups
                    ],
                )
        with tally.phase("sync"):
            for fd in fds.values():
                disk.sync(fd)


def _size_of(records: Sequence[Record]) -> int:
    return sum(record.span for record in records)


def _open(paths: Reserved, name: str, disk: Disk) -> int:
    path = paths.directory / name
    try:
        fd = disk.open(path, create=False)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise LocalDamaged(f"{path}: is gone, or no file any more ({error.strerror})") from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        disk.close(fd)
        raise LocalDamaged(f"{path}: is a link, and writing to it would change another file")
    return fd


def _write(
    records: Sequence[Record],
    journal: JournalReader,
    fds: Mapping[int, int],
    disk: Disk,
    tally: Tally,
) -> None:
    for record in records:
        fd, room = fds[record.file], chunk_room(record.span, at=record.offset)
        span = room[: record.span].data
        if os.preadv(fd, [span], record.offset) != record.span:
            raise LocalDamaged(f"{journal.outcome.files[record.file]}: became shorter")
        journal.patch(record, room)
        disk.write(fd, record.offset, span)
        disk.begin_sync(fd, record.offset, record.span)
        tally.through(written=record.span, done=record.span)
