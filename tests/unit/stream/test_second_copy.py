"""Pulls with two copies: into files that nobody reads, which then take their places."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hotswap.sparse.cache import PatchCache
from hotswap.stream import (
    DeltaDamaged,
    Keep,
    LocalDiskFailed,
    OutsideRoots,
    PullMode,
    PullReport,
    pull,
    reading,
)
from hotswap.stream.disk import Disk, LocalDisk
from hotswap.stream.second_copy import worth_copying
from hotswap.stream.state import Reserved
from hotswap.stream.stored import StoredTensors
from tests.unit.stream.faulty_disk import FaultyDisk
from tests.unit.stream.streams import Stream, contents_of, publish

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Versions 1 to 4, of which version 0 and 1 have been pulled."""
    made = Stream(tmp_path, "xor", "gap", "xor", "gap")
    reach(made, 0)
    reach(made, 1)
    return made


def reach(
    stream: Stream, target: int, *, disk: Disk | None = None, patches: PatchCache | None = None
) -> PullReport:
    report = pull(
        stream.local,
        stream.source,
        target,
        base_dir=stream.base,
        threads=2,
        disk=disk,
        patches=patches,
        keep=Keep.COPIES,
    )
    check(stream, target)
    return report


def check(stream: Stream, version: int) -> None:
    assert contents_of(stream.local) == stream.at(version)
    assert not Reserved(stream.local).is_pending


def inodes(directory: Path) -> list[int]:
    return [(directory / name).stat().st_ino for name in (FIRST, SECOND)]


def add_to(stream: Stream, name: str) -> None:
    """A version in which only tensor ``name`` has changed."""
    new = {one: value.copy() for one, value in stream.tensors[-1].items()}
    new[name][:100] ^= 1
    publish(stream.source, len(stream.tensors), stream.tensors[-1], new)
    stream.tensors.append(new)


def test_two_copies_take_turns(stream: Stream) -> None:
    spare = Reserved(stream.local).spare
    first, second = inodes(stream.local), inodes(spare)
    report = reach(stream, 2)
    assert report.mode is PullMode.DELTA
    assert (inodes(stream.local), inodes(spare)) == (second, first)
    assert contents_of_files(spare) == contents_at(stream, 1)
    report = reach(stream, 4)
    assert (report.mode, report.versions) == (PullMode.FOLD, (3, 4))
    assert (inodes(stream.local), inodes(spare)) == (first, second)
    assert os.listdir(Reserved(stream.local).incoming) == []


def contents_of_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def contents_at(stream: Stream, version: int) -> dict[str, bytes]:
    """The files of ``version``, as a pull of its own makes them."""
    local = stream.local.with_name(f"fresh-{version}")
    pull(local, stream.source, version, base_dir=stream.base)
    return {name: (local / name).read_bytes() for name in (FIRST, SECOND)}


def test_who_holds_a_file_open_reads_its_version_to_the_end(stream: Stream) -> None:
    with StoredTensors.at(stream.local) as held:
        reach(stream, 2)
        for name, content in stream.at(1).items():
            read = bytearray(len(content))
            held.tensors[name].read_into(memoryview(read))
            assert bytes(read) == content


def test_of_each_file_one_read_and_one_write(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three versions at once: however many they are."""
    read, written = dict.fromkeys((FIRST, SECOND), 0), dict.fromkeys((FIRST, SECOND), 0)
    preadv = os.preadv

    def counted(fd: int, buffers: list[memoryview], offset: int) -> int:
        got = preadv(fd, buffers, offset)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.parent == stream.local and path.name in read and offset >= data_begins(path):
            read[path.name] += got
        return got

    class Counting(LocalDisk):
        def write(self, fd: int, offset: int, content: memoryview) -> None:
            name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
            if name in written:
                written[name] += len(content)
            super().write(fd, offset, content)

    monkeypatch.setattr(os, "preadv", counted)
    pull(
        stream.local,
        stream.source,
        4,
        base_dir=stream.base,
        disk=Counting(),
        keep=Keep.COPIES,
    )
    monkeypatch.undo()
    check(stream, 4)
    sizes = {name: (stream.local / name).stat().st_size for name in read}
    assert written == sizes
    assert read == {name: sizes[name] - data_begins(stream.local / name) for name in read}


def data_begins(path: Path) -> int:
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def test_what_hardly_changes_is_written_in_place(stream: Stream) -> None:
    with StoredTensors.at(stream.local) as stored:
        assert worth_copying(stored, ["layers.2.weight"]) == (FIRST,)
        assert worth_copying(stored, ["layers.2.weight", "layers.3.weight"]) == (FIRST, SECOND)
        assert worth_copying(stored, []) == ()
    # A file with three tensors, of which one changes.
    lopsided = Stream(stream.local.parent / "three", "xor", count=6)
    reach(lopsided, 1)
    add_to(lopsided, "layers.3.weight")
    before = inodes(lopsided.local)
    reach(lopsided, 2)
    assert inodes(lopsided.local) == before


def test_the_rest_of_a_file_is_copied_and_checked(stream: Stream) -> None:
    reach(stream, 4)
    add_to(stream, "layers.2.weight")
    before = inodes(stream.local)
    report = reach(stream, 5)
    after = inodes(stream.local)
    assert (report.mode, before[0] != after[0], before[1] == after[1]) == ("delta", True, True)
    add_to(stream, "layers.2.weight")
    damage(stream.local / FIRST, "layers.0.weight", stream)
    report = reach(stream, 6)
    assert report.mode is PullMode.RESEED
    assert "'layers.0.weight' has the checksum" in str(report.reason)


def damage(path: Path, name: str, stream: Stream) -> None:
    with StoredTensors.at(stream.local) as stored:
        at = stored.tensors[name].span.offset
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_file_that_cannot_be_read_is_made_anew(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach(stream, 4)
    add_to(stream, "layers.2.weight")
    with StoredTensors.at(stream.local) as stored:
        at = stored.tensors["layers.0.weight"].span.offset
    preadv, left = os.preadv, [1]

    def broken(fd: int, buffers: list[memoryview], offset: int) -> int:
        is_it = os.readlink(f"/proc/self/fd/{fd}") == str(stream.local / FIRST) and offset == at
        if is_it and left:
            left.pop()
            raise OSError(errno.EIO, "Input/output error")
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", broken)
    report = pull(stream.local, stream.source, 5, base_dir=stream.base, keep=Keep.COPIES)
    check(stream, 5)
    assert (report.mode, left) == (PullMode.RESEED, [])
    assert f"{FIRST}: cannot be read" in str(report.reason)


def test_a_damaged_delta_changes_nothing_that_is_held(stream: Stream) -> None:
    before = inodes(stream.local)
    reach(stream, 3)
    held = inodes(stream.local)
    assert held != before
    wrong = {name: np.bitwise_xor(value, 1) for name, value in stream.tensors[3].items()}
    publish(stream.source / "other", 4, wrong, stream.tensors[4])
    (stream.source / "weight_v000004").rename(stream.source / "kept")
    (stream.source / "other" / "weight_v000004").rename(stream.source / "weight_v000004")
    with pytest.raises(DeltaDamaged) as refused:
        reach(stream, 4)
    assert refused.value.local_version == 3
    check(stream, 3)
    assert inodes(stream.local) == held
    with reading(stream.local, timeout_s=0):
        pass
    (stream.source / "weight_v000004").rename(stream.source / "wrong")
    (stream.source / "kept").rename(stream.source / "weight_v000004")
    reach(stream, 4)


def shorter(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def shared(path: Path) -> None:
    os.link(path, path.parents[3] / "shared")


def led_elsewhere(path: Path) -> None:
    path.rename(path.parents[3] / "shared")
    path.symlink_to(path.parents[3] / "shared")


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "deep").write_text("x")


def gone(path: Path) -> None:
    path.unlink()


def in_no_directory(path: Path) -> None:
    for one in path.parent.iterdir():
        one.unlink()
    path.parent.rmdir()
    path.parent.write_text("a file")


def begun(path: Path) -> None:
    """As a killed pull leaves it."""
    incoming = path.parents[1] / "incoming"
    path.rename(incoming / path.name)
    (incoming / path.name).write_bytes(b"half")


@pytest.mark.parametrize(
    "change", [shorter, shared, led_elsewhere, a_directory, gone, in_no_directory, begun]
)
def test_whatever_became_of_the_spare(stream: Stream, change: Callable[[Path], None]) -> None:
    change(Reserved(stream.local).spare / FIRST)
    kept = stream.local.parent / "shared"
    was = kept.read_bytes() if kept.exists() else None
    for target in (2, 3, 4):
        assert reach(stream, target).mode is PullMode.DELTA
    assert (kept.read_bytes() if kept.exists() else None) == was
    assert not any((stream.local / name).is_symlink() for name in (FIRST, SECOND))


def test_the_spare_leads_nowhere(stream: Stream, tmp_path: Path) -> None:
    spare = Reserved(stream.local).spare
    spare.rename(tmp_path / "elsewhere")
    spare.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutsideRoots, match=r"spare is a link"):
        reach(stream, 2)
    assert sorted(os.listdir(tmp_path / "elsewhere")) == [FIRST, SECOND]


def test_a_pull_is_finished_over_what_was_put_where_the_spare_goes(stream: Stream) -> None:
    def fault(number: int) -> None:
        if disk.calls[:number].count("rename") > 3:  # the spares, the journal, one file
            raise OSError(errno.EIO, "Input/output error")

    disk = FaultyDisk(fault)
    with pytest.raises(LocalDiskFailed, match="the next pull finishes it"):
        reach(stream, 2, disk=disk)
    spare = Reserved(stream.local).spare
    assert os.listdir(spare) == [FIRST]
    (spare / SECOND).mkdir()
    assert reach(stream, 2).mode is PullMode.RECOVERED
    assert contents_of_files(spare) == contents_at(stream, 1)


class Full(LocalDisk):
    """A disk without room for what is ``incoming``."""

    def write(self, fd: int, offset: int, content: memoryview) -> None:
        if "/incoming/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, offset, content)


@pytest.mark.parametrize("told_before", [False, True])
def test_without_room_a_pull_writes_in_place(
    stream: Stream,
    told_before: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    paths, before = Reserved(stream.local), inodes(stream.local)
    patches, disk = PatchCache(), None if told_before else Full()
    if told_before:
        for name in (FIRST, SECOND):
            (paths.spare / name).unlink()
        room = SimpleNamespace(f_bavail=1, f_frsize=4096)
        monkeypatch.setattr(os, "statvfs", lambda path: room)
    with caplog.at_level(logging.WARNING, "hotswap.pull"):
        report = reach(stream, 2, disk=disk, patches=patches)
    assert (report.mode, inodes(stream.local)) == (PullMode.DELTA, before)
    assert "no second copy, written in place" in caplog.text
    assert [*paths.spare.iterdir(), *paths.incoming.iterdir()] == []
    monkeypatch.undo()
    reach(stream, 4, patches=patches)
    assert inodes(stream.local) != before
    first, second = patches._patches.values()
    assert patches.way(first.before, second.after) == (first, second)


def test_what_changed_is_kept_for_updates(stream: Stream) -> None:
    patches = PatchCache()
    for target in (2, 3, 4):
        reach(stream, target, patches=patches)
    steps = tuple(patches._patches.values())
    assert [(one.before.version, one.after.version) for one in steps] == [(1, 2), (2, 3), (3, 4)]
    assert patches.way(steps[0].before, steps[-1].after) == steps


@pytest.mark.parametrize("keep", [Keep.FILES, Keep.LOG])
def test_a_pull_without_a_second_copy_gives_its_room_back(stream: Stream, keep: Keep) -> None:
    paths = Reserved(stream.local)
    assert len(list(paths.spare.iterdir())) == 2
    pull(stream.local, stream.source, 1, base_dir=stream.base, keep=keep)
    assert list(paths.spare.iterdir()) == []
    check(stream, 1)
