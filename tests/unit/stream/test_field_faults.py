"""Faults that people hit in the field, over every encoding and checksum and way to keep a copy.

Torn applies, chains with gaps, versions that are half written or visible late, and files
that change under who has loaded them.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import shutil
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from hotswap.pulls.logged import held_checkpoint
from hotswap.stream import (
    BaseChanged,
    DeltaDamaged,
    Keep,
    OutOfOrder,
    PullReport,
    SourceNotReady,
    StreamError,
    VersionMissing,
    directory_of,
    pull,
)
from hotswap.stream.checksums import OWN_CHECKSUM
from hotswap.stream.disk import Disk
from hotswap.stream.layout import INDEX
from hotswap.testing.delivered import delivered
from tests.tiers import mostly_long
from tests.unit.stream.crash_setups import a_write_for_each_blob
from tests.unit.stream.faulty_disk import FaultyDisk
from tests.unit.stream.streams import Stream, edit_index, held_contents, write_checkpoint

DELTAS = (
    *itertools.product(("xor", "overwrite"), ("xxh3-128", "blake3", "adler32")),
    ("gap", "xxh3-128"),
)
KINDS = (*DELTAS, ("full", ""))
FILE = "model-00000-of-00001.safetensors"
LOCAL_FILE = "model-00001-of-00002.safetensors"

Kind = tuple[str, str]
S = TypeVar("S", bound=Stream)

every_way = pytest.mark.parametrize("keep", mostly_long(Keep, but=[Keep.FILES]))


class Kept(Stream):
    """A stream that is pulled in the way ``keep``."""

    def __init__(self, root: Path, keep: Keep, **shape: int) -> None:
        super().__init__(root, **shape)
        self.keep = keep

    def pull(self, target: int, *, disk: Disk | None = None) -> PullReport:
        return pull(
            self.local,
            self.source,
            target,
            base_dir=self.base,
            threads=1,
            keep=self.keep,
            disk=disk,
        )

    def mode(self, of_files: str) -> str:
        """What a pull that goes into the files as ``of_files`` is called in this way."""
        return "log" if self.keep is Keep.LOG else of_files


def added(stream: S, kind: Kind, count: int = 1, *, share: float = 0.01) -> S:
    """``count`` versions more of ``kind``."""
    encoding, checksum = kind
    for _ in range(count):
        stream.add(encoding, share=share, checksum_format=checksum or OWN_CHECKSUM)
    return stream


def reach(stream: Kept, target: int) -> PullReport:
    report = stream.pull(target)
    assert held_contents(stream.local) == stream.at(target)
    return report


def refused(stream: Kept, target: int, kind: type[StreamError], *, at: int) -> StreamError:
    """The pull of ``target`` fails as ``kind``, and version ``at`` is still there, whole."""
    with pytest.raises(StreamError) as caught:
        stream.pull(target)
    assert (type(caught.value), caught.value.local_version) == (kind, at)
    assert held_contents(stream.local) == stream.at(at)
    return caught.value


def spoil(path: Path, at: int) -> None:
    """Change a few bytes; a single bit may be one that a decompressor never looks at."""
    content = bytearray(path.read_bytes())
    content[at : at + 8] = bytes(byte ^ 255 for byte in content[at : at + 8])
    path.write_bytes(content)


# --- A20: an apply that is torn in the middle, and asked for again


@every_way
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("write", [0, 6, 11])
def test_a_pull_that_stops_at_a_write_is_finished_by_the_next(
    kind: Kind, write: int, keep: Keep, tmp_path: Path
) -> None:
    stream = added(Kept(tmp_path, keep, length=500, count=20), kind)
    reach(stream, 0)

    def stops(number: int) -> None:
        if disk.calls.count("write") > write:
            raise OSError(errno.EIO, "Input/output error")

    disk = FaultyDisk(stops)
    with pytest.raises(StreamError), a_write_for_each_blob():
        stream.pull(1, disk=disk)
    assert disk.calls.count("write") > write
    # Asked for again, and once more: a difference that is applied twice would be undone.
    for _ in range(2):
        reach(stream, 1)


@every_way
@pytest.mark.parametrize("kind", DELTAS, ids="-".join)
def test_a_damaged_tensor_in_the_middle_leaves_none_of_the_others(
    kind: Kind, keep: Keep, tmp_path: Path
) -> None:
    stream = added(Kept(tmp_path, keep, length=500, count=20), kind, 2)
    reach(stream, 1)
    path = directory_of(stream.source, 2) / FILE
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    spoil(path, (begin + len(whole)) // 2)
    error = refused(stream, 2, DeltaDamaged, at=1)
    assert "version 2, tensor 'layers." in str(error)
    path.write_bytes(whole)
    assert reach(stream, 2).mode == stream.mode("delta")


# --- A21: gaps, order, another base


@every_way
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_the_chain_is_found_whole_before_anything_is_written(
    kind: Kind, keep: Keep, tmp_path: Path
) -> None:
    stream = added(Kept(tmp_path, keep), kind, 3)
    assert reach(stream, 3).mode == "seed"
    assert reach(stream, 3).mode == "noop"
    assert reach(stream, 2).mode == "reseed"
    assert reach(stream, 0).mode == "reseed"
    directory_of(stream.source, 2).rename(tmp_path / "kept")
    if kind[0] == "full":
        assert reach(stream, 3).start == 3
        return
    error = refused(stream, 3, VersionMissing, at=0)
    assert "version 2 is missing on the way to 3" in str(error)
    assert not error.retryable
    (tmp_path / "kept").rename(directory_of(stream.source, 2))
    assert reach(stream, 3).versions == (1, 2, 3)


@every_way
@pytest.mark.parametrize("kind", DELTAS, ids="-".join)
def test_a_delta_on_another_base_than_the_one_applied(
    kind: Kind, keep: Keep, tmp_path: Path
) -> None:
    stream = added(Kept(tmp_path, keep), kind, 2)
    reach(stream, 0)
    # It says that it builds on 0 and builds on 1: as a version that was made for another base.
    edit_index(directory_of(stream.source, 2), base_version="000000")
    refused(stream, 2, BaseChanged, at=0)
    edit_index(directory_of(stream.source, 2), base_version="000002")
    refused(stream, 2, OutOfOrder, at=0)
    edit_index(directory_of(stream.source, 2), base_version="000001")
    assert reach(stream, 2).mode == stream.mode("fold")


# --- A22: half-written versions


def without_index(directory: Path) -> None:
    (directory / INDEX).unlink()


def index_not_renamed(directory: Path) -> None:
    (directory / INDEX).rename(directory / f"{INDEX}.tmp")


def a_file_missing(directory: Path) -> None:
    max(directory.glob("*.safetensors")).unlink()


def a_file_not_renamed(directory: Path) -> None:
    path = max(directory.glob("*.safetensors"))
    path.rename(path.with_name(f"{path.name}.tmp"))


def a_file_short(directory: Path) -> None:
    path = max(directory.glob("*.safetensors"))
    os.truncate(path, path.stat().st_size // 2)


def a_file_empty(directory: Path) -> None:
    os.truncate(max(directory.glob("*.safetensors")), 0)


def nothing(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


HALVES = (
    without_index,
    index_not_renamed,
    a_file_missing,
    a_file_not_renamed,
    a_file_short,
    a_file_empty,
    nothing,
)


@every_way
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_a_half_written_version_is_not_ready_whatever_is_missing(
    kind: Kind, keep: Keep, tmp_path: Path
) -> None:
    stream = added(Kept(tmp_path, keep), ("xor", "xxh3-128"))
    reach(stream, 1)
    encoding, checksum = kind
    directory = stream.add(encoding, files=2, checksum_format=checksum or OWN_CHECKSUM)
    if encoding == "full":
        shutil.rmtree(directory)
        write_checkpoint(directory, stream.tensors[2], files=2)
    shutil.copytree(directory, tmp_path / "whole")
    # A full version needs no index: whole shards without one are a whole version.
    halves = HALVES[2:] if encoding == "full" else HALVES
    for half in halves:
        half(directory)
        error = refused(stream, 2, SourceNotReady, at=1)
        assert error.retryable, half.__name__
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "whole", directory)
    reach(stream, 2)


@every_way
@pytest.mark.parametrize("encoding", ["xor", "overwrite", "gap"])
def test_a_publisher_whose_disk_fails_leaves_no_version(
    encoding: str, keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Kept(tmp_path, keep)
    stream.add("xor")
    reach(stream, 1)
    fsync, calls = os.fsync, itertools.count()
    for failing in range(3):
        with monkeypatch.context() as patched:
            first = next(calls)

            def fails(fd: int, at: int = first + 1 + failing) -> None:
                if next(calls) == at:
                    raise OSError(errno.ENOSPC, "No space left on device")
                fsync(fd)

            patched.setattr(os, "fsync", fails)
            kept = list(stream.tensors)
            with pytest.raises(OSError, match="No space left"):
                stream.add(encoding, files=2)
            stream.tensors = kept
        assert refused(stream, 2, SourceNotReady, at=1).retryable
    stream.add(encoding, files=2)
    reach(stream, 2)


@every_way
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_files_cut_at_every_length_class(kind: Kind, keep: Keep, tmp_path: Path) -> None:
    stream = added(Kept(tmp_path, keep), ("xor", "xxh3-128"))
    reach(stream, 1)
    added(stream, kind)
    path = max(directory_of(stream.source, 2).glob("*.safetensors"))
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    middle = (begin + len(whole)) // 2
    for length in (0, 1, 7, 8, 9, begin // 2, begin - 1, begin, begin + 1, middle, len(whole) - 1):
        path.write_bytes(whole[:length])
        error = refused(stream, 2, SourceNotReady, at=1)
        assert error.retryable
        assert f"{length} bytes are there, wanted" in str(error)
    path.write_bytes(whole)
    reach(stream, 2)


# --- A23: a mount that shows things late


@every_way
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_no_name_of_a_source_is_asked_for_before_it_is_listed(
    kind: Kind, keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would be remembered as missing by the mount, long after it was published."""
    stream = added(Kept(tmp_path, keep), kind, 2)
    reach(stream, 1)
    directory = directory_of(stream.source, 2)
    hidden, listed = tmp_path / "hidden", set[str]()
    directory.rename(hidden)
    listdir, lstat = os.listdir, os.lstat
    too_early = list[str]()

    def listing(path: str | Path) -> list[str]:
        names = listdir(path)
        if str(path) == str(stream.source):
            listed.update(names)
        return names

    def asking(path: str | Path, *, dir_fd: int | None = None) -> os.stat_result:
        if Path(path).parent == stream.source and Path(path).name not in listed:
            too_early.append(str(path))
        return lstat(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "listdir", listing)
    monkeypatch.setattr(os, "lstat", asking)
    for _ in range(2):
        assert refused(stream, 2, SourceNotReady, at=1).retryable
    hidden.rename(directory)
    reach(stream, 2)
    assert too_early == []


# --- A28: files that change under who has loaded them


def loaded(directory: Path) -> dict[str, torch.Tensor]:
    """What an update that reads ``directory`` has in memory once it has let go of it."""
    with held_checkpoint(directory) as checkpoint:
        return delivered(checkpoint.buckets())


@every_way
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_what_was_loaded_does_not_move_when_the_next_version_is_pulled(
    kind: Kind, keep: Keep, tmp_path: Path
) -> None:
    stream = added(Kept(tmp_path, keep), kind, 2, share=0.5)
    reach(stream, 1)
    live = loaded(stream.local)
    maps = Path("/proc/self/maps").read_text()
    assert str(stream.local) not in maps
    reach(stream, 2)
    assert {name: bytes(value.numpy()) for name, value in live.items()} == stream.at(1)


@every_way
def test_a_new_copy_never_writes_into_a_file_that_somebody_may_map(
    keep: Keep, tmp_path: Path
) -> None:
    stream = added(Kept(tmp_path, keep), ("full", ""), 2, share=0.5)
    reach(stream, 1)
    [path] = stream.local.glob("*.safetensors")
    content = path.read_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert reach(stream, 2).mode == "reseed"
        assert mapped[:] == content
    assert path.read_bytes() != content


# --- what the operating system may lack


@every_way
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_without_advice_to_the_page_cache_nothing_is_missing(
    kind: Kind, keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("posix_fadvise", "posix_fallocate", "sync_file_range", "copy_file_range"):
        monkeypatch.delattr(os, name, raising=False)
    stream = added(Kept(tmp_path, keep), kind, 2)
    for target in (0, 1, 2):
        reach(stream, target)
