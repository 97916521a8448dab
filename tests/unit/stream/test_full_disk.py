"""A disk that is full: what a pull has begun to write it can finish without any more room."""

from __future__ import annotations

import errno
import os
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from hotswap.stream import DiskFull, Keep, materialize, pull
from hotswap.stream.disk import LocalDisk
from hotswap.stream.state import Reserved, unfinished
from tests.unit.stream.faulty_disk import failing
from tests.unit.stream.streams import Stream, contents_of, refusal_of


class FullOnceJournaled(LocalDisk):
    """Has no room for anything new from when a journal counts."""

    def __init__(self) -> None:
        self.journaled = False

    def _want_room(self) -> None:
        if self.journaled:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def make_directory(self, path: Path) -> None:
        if not path.exists():
            self._want_room()
        super().make_directory(path)

    def open(self, path: Path, *, create: bool) -> int:
        if create:
            self._want_room()
        return super().open(path, create=create)

    def write(self, fd: int, offset: int, content: memoryview) -> None:
        if offset + len(content) > os.fstat(fd).st_size:
            self._want_room()
        super().write(fd, offset, content)

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.journaled |= new.name == "journal"


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path, "xor", "gap", "overwrite")


def reach(stream: Stream, target: int, keep: Keep, disk: LocalDisk | None = None) -> None:
    pull(stream.local, stream.source, target, base_dir=stream.base, threads=1, keep=keep, disk=disk)


@pytest.mark.parametrize("keep", [Keep.FILES, Keep.COPIES])
@pytest.mark.parametrize("target", [1, 3], ids=["a new copy", "forward"])
def test_once_its_journal_counts_a_pull_needs_no_room(
    stream: Stream, keep: Keep, target: int
) -> None:
    reach(stream, 2, keep)
    disk = FullOnceJournaled()
    reach(stream, target, keep, disk)
    assert disk.journaled
    assert contents_of(stream.local) == stream.at(target)
    assert not unfinished(Reserved(stream.local).state).exists()


def test_nor_does_a_log_that_is_written_into_the_files(stream: Stream) -> None:
    reach(stream, 1, Keep.FILES)
    reach(stream, 3, Keep.LOG)
    disk = FullOnceJournaled()
    materialize(stream.local, disk=disk)
    assert disk.journaled
    assert contents_of(stream.local) == stream.at(3)


@pytest.mark.parametrize("keep", [Keep.FILES, Keep.COPIES])
def test_a_disk_that_is_full_at_any_call_before_leaves_the_version_and_takes_no_room(
    stream: Stream, keep: Keep
) -> None:
    reach(stream, 1, keep)
    reach(stream, 2, keep)
    paths = Reserved(stream.local)
    was = {path: path.read_bytes() for path in stream.local.iterdir() if path.is_file()}
    refused = 0
    for calls in count():
        disk = failing(calls, errno.ENOSPC, times=10**6)
        error = refusal_of(partial(reach, stream, 3, keep, disk))
        assert isinstance(error, DiskFull)
        if paths.is_pending:  # every call fails here, also those that need no room
            assert error.local_version is None
            break
        assert error.local_version == 2
        assert {path: path.read_bytes() for path in was} == was
        refused += 1
    assert refused > 3
    reach(stream, 3, keep)
    assert contents_of(stream.local) == stream.at(3)


def test_a_state_that_was_written_ahead_and_is_another_is_written_anew(stream: Stream) -> None:
    reach(stream, 2, Keep.FILES)
    paths = Reserved(stream.local)

    class Meddling(FullOnceJournaled):
        def rename(self, old: Path, new: Path) -> None:
            super().rename(old, new)
            if new == paths.journal:
                self.journaled = False
                unfinished(paths.state).write_text("{}")

    reach(stream, 3, Keep.FILES, Meddling())
    assert contents_of(stream.local) == stream.at(3)
