"""A second copy: the next version is written whole, into files that nobody reads.

Rules:

* What is held stays as it is until the journal says that the new files take their places. They
  are written in ``.weight_sync/incoming``; what they replace goes to ``.weight_sync/spare``.
* The spare is room and nothing else: every byte of it is written anew, and what it held is never
  looked at. Its pages are there already: a new file on tmpfs costs three times as much.
* Without room for it nothing is lost: the pull writes in place, by the journal.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from hotswap.stream.checksums import OWN_CHECKSUM, new_hasher
from hotswap.stream.encodings import Bytes
from hotswap.stream.errors import LocalDamaged
from hotswap.stream.journal import CHUNK_BYTES, JournalWriter, chunk_room
from hotswap.stream.local import LocalCheckpoint
from hotswap.stream.parallel import Task, run_all
from hotswap.stream.stored import StoredFile, StoredTensors
from hotswap.stream.words import Words

__all__ = ["NoRoom", "SecondCopy", "worth_copying"]

_LEAST_SHARE = 0.5
"""How much of a file has to be tensors that change: else the journal writes less."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class NoRoom(Exception):
    """The disk has no room for a second copy; nothing that counts was changed."""


def worth_copying(stored: StoredTensors, changed: Collection[str]) -> tuple[str, ...]:
    """The files of ``stored`` of which tensors ``changed`` are at least half."""
    bytes_of = dict.fromkeys(stored.files, 0)
    for name in changed:
        tensor = stored.tensors[name]
        bytes_of[tensor.file.name] += tensor.span.length
    headers = {name: file.header for name, file in stored.files.items()}
    all_bytes = {name: one.file_bytes - one.data_offset for name, one in headers.items()}
    return tuple(n for n, size in bytes_of.items() if size and size >= _LEAST_SHARE * all_bytes[n])


class SecondCopy:
    """The next version of the files ``names``, open; the lock of ``local`` is held.

    What changes of other files goes into ``journal``.
    """

    def __init__(
        self,
        local: LocalCheckpoint,
        stored: StoredTensors,
        names: Collection[str],
        *,
        journal: JournalWriter,
    ) -> None:
        """Find or make the files. Raises: NoRoom, OSError."""
        self.names: tuple[str, ...] = tuple(names)
        self._local = local
        self._stored = stored
        self._journal = journal
        self._numbers = {name: number for number, name in enumerate(stored.files)}
        self._fds: dict[int, int] = {}
        self._stack = ExitStack()
        try:
            with _no_room():
                self._open()
        except BaseException:
            self._stack.close()
            raise

    def __repr__(self) -> str:
        return f"<SecondCopy of {self._local.directory} {len(self.names)} files>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def wants_words(self, file: int) -> bool:
        """Whether ``change`` has to be told which words are others."""
        return file not in self._fds

    def change(self, file: int, offset: int, room: Bytes, *, span: int, words: Words) -> None:
        """The ``span`` bytes at ``offset`` are as ``room`` begins. Any thread.

        Raises: NoRoom, OSError.
        """
        fd = self._fds.get(file)
        if fd is None:
            self._journal.change(file, offset, room, span=span, words=words)
        else:
            self._write(fd, offset, room[:span].data)

    def complete(self, changed: Collection[str], known: Mapping[str, str]) -> None:
        """Copy all but the tensors ``changed``, and make the files durable.

        Raises: LocalDamaged for one that has not the xxh3-128 that is ``known``, NoRoom, OSError.
        """
        local, tasks = self._local, list[Task]()
        for number, fd in self._fds.items():
            tasks += self._rest(self._stored.files[self._name(number)], fd, changed, known)
        total = sum(size for size, _ in tasks)
        with local.tally.phase("copy", total_bytes=total):
            run_all(local.pool, tasks)
        with local.tally.phase("sync"), _no_room():
            for fd in self._fds.values():
                local.disk.sync(fd)
            if self._fds:
                local.disk.sync_directory(local.paths.incoming)

    def _name(self, number: int) -> str:
        return next(name for name, its in self._numbers.items() if its == number)

    def _rest(
        self, stored: StoredFile, fd: int, changed: Collection[str], known: Mapping[str, str]
    ) -> Iterator[Task]:
        begin = stored.header.data_offset
        yield begin, partial(self._copy, stored, 0, begin, fd, None)
        for name, span in stored.header.spans.items():
            placed = self._stored.tensors.get(name)
            # A tensor that the index places in another file is copied, and is nothing else.
            is_it = placed is not None and placed.file is stored.file
            if not (is_it and name in changed):
                wanted = (name, known.get(name)) if is_it else None
                work = partial(self._copy, stored, span.offset, span.length, fd, wanted)
                yield span.length, work

    def _copy(
        self,
        stored: StoredFile,
        offset: int,
        length: int,
        fd: int,
        wanted: tuple[str, str | None] | None,
    ) -> None:
        hasher = new_hasher(OWN_CHECKSUM)
        for at in range(0, length, CHUNK_BYTES):
            size = min(CHUNK_BYTES, length - at)
            piece = chunk_room(size, at=offset + at)[:size].data
            try:
                stored.file.read_at(offset + at, piece)
            except OSError as error:
                message = f"{stored.file.name}: cannot be read ({error})"
                raise LocalDamaged(message) from error
            if wanted is not None:
                hasher.update(piece)
            self._write(fd, offset + at, piece)
            self._local.tally.through(done=size)
        if wanted is not None and hasher.hexdigest() != wanted[1]:
            raise LocalDamaged(
                f"{stored.file.name}: tensor {wanted[0]!r:.200} has the checksum "
                f"{hasher.hexdigest()}, but the last pull left {wanted[1]}"
            )

    def _write(self, fd: int, offset: int, content: memoryview) -> None:
        disk = self._local.disk
        with _no_room():
            disk.write(fd, offset, content)
        disk.begin_sync(fd, offset, len(content))
        self._local.tally.through(written=len(content))

    def _open(self) -> None:
        local = self._local
        local.begin_copies(self.names)
        sizes = {name: self._stored.files[name].header.file_bytes for name in self.names}
        found = {name: self._taken(name, size) for name, size in sizes.items()}
        _check_room(local.paths.incoming, sum(sizes[name] for name in sizes if not found[name]))
        for name in self.names:
            fd = local.disk.open(local.paths.incoming / name, create=not found[name])
            self._stack.callback(local.disk.close, fd)
            self._fds[self._numbers[name]] = fd

    def _taken(self, name: str, size: int) -> bool:
        """Whether a file of ``size`` bytes is in the place of the new ``name``, to write over."""
        disk, place = self._local.disk, self._local.paths.incoming / name
        for there in (place, self._local.paths.spare / name):
            if _is_room(there, size):
                if there != place:
                    disk.rename(there, place)
                return True
            if os.path.lexists(there):
                disk.remove(there)
        return False


def _is_room(path: Path, size: int) -> bool:
    """Whether ``path`` is a file that may be written over and is nowhere else."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    is_own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return is_own and status.st_size == size and os.access(path, os.R_OK | os.W_OK)


def _check_room(path: Path, size: int) -> None:
    """Raises: NoRoom before a disk is filled up for nothing."""
    status = os.statvfs(path)
    free = status.f_bavail * status.f_frsize
    if size > free:
        raise NoRoom(f"{size / 1e6:.0f} MB more are wanted, and {free / 1e6:.0f} MB are free")


@contextmanager
def _no_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise NoRoom(error.strerror) from error
