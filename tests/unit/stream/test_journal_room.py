"""Pulls that change so much that a journal would be as long as the files: these are made anew."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotswap.sparse.cache import PatchCache
from hotswap.stream import DeltaDamaged, Keep, PullMode, materialize, pull
from hotswap.stream.state import Reserved
from tests.unit.stream.crash_setups import length_counts_from
from tests.unit.stream.streams import Stream, contents_of, refusal_of

FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
ENCODINGS = ("gap", "xor", "overwrite")


def streamed(root: Path, encoding: str, *, share: float) -> Stream:
    """Three versions in which ``share`` of all bytes change, of which version 0 was pulled."""
    stream = Stream(root)
    for _ in range(3):
        stream.add(encoding, share=share)
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    return stream


def inodes(stream: Stream) -> list[int]:
    return [(stream.local / name).stat().st_ino for name in FILES]


def check_clean(stream: Stream, version: int) -> None:
    paths = Reserved(stream.local)
    assert contents_of(stream.local) == stream.at(version)
    assert not paths.is_pending
    for room in (paths.incoming, paths.spare):
        assert not room.exists() or list(room.iterdir()) == []


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("share", "counts_from", "anew"), [(0.5, 1, True), (0.001, 1, False), (0.5, 2**20, False)]
)
def test_files_are_made_anew_where_a_journal_would_be_long(
    encoding: str, share: float, counts_from: int, anew: bool, tmp_path: Path
) -> None:
    stream = streamed(tmp_path, encoding, share=share)
    before, patches = inodes(stream), PatchCache()
    with length_counts_from(counts_from):
        report = pull(
            stream.local, stream.source, 3, base_dir=stream.base, threads=2, patches=patches
        )
    assert (report.mode, report.versions) == (PullMode.FOLD, (1, 2, 3))
    check_clean(stream, 3)
    now = inodes(stream)
    assert [old != new for old, new in zip(before, now, strict=True)] == [anew, anew]
    (patch,) = patches._patches.values()
    assert (patch.before.version, patch.after.version) == (0, 3)
    assert len(patch.tensors) == len(stream.tensors[0])


def test_so_is_a_log_that_is_written_into_the_files(tmp_path: Path) -> None:
    stream = streamed(tmp_path, "gap", share=0.4)
    before = inodes(stream)
    for version in (1, 2, 3):
        pull(stream.local, stream.source, version, base_dir=stream.base, keep=Keep.LOG)
    assert inodes(stream) == before
    with length_counts_from(1):
        materialize(stream.local)
    check_clean(stream, 3)
    assert set(inodes(stream)).isdisjoint(before)


def test_without_room_it_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = streamed(tmp_path, "xor", share=0.5)
    before = inodes(stream)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=1, f_frsize=4096))
    with caplog.at_level(logging.WARNING, "hotswap.pull"), length_counts_from(1):
        pull(stream.local, stream.source, 3, base_dir=stream.base)
    assert "no second copy, written in place" in caplog.text
    check_clean(stream, 3)
    assert inodes(stream) == before


def test_a_damaged_gap_leaves_what_is_held(tmp_path: Path) -> None:
    """What cannot even be estimated is found when it is read."""
    stream = streamed(tmp_path, "gap", share=0.5)
    (file,) = (stream.source / "weight_v000002").glob("*-of-*.safetensors")
    content = bytearray(file.read_bytes())
    content[content.index(b"hsg")] ^= 1
    file.write_bytes(content)
    before = inodes(stream)
    with length_counts_from(1):
        refused = refusal_of(lambda: pull(stream.local, stream.source, 3, base_dir=stream.base))
    assert isinstance(refused, DeltaDamaged)
    check_clean(stream, 0)
    assert inodes(stream) == before
