"""From version to version in both ways of keeping: bytes that are written, patches, any order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.sparse.cache import PatchCache
from hotswap.stream import (
    Keep,
    PullMode,
    directory_of,
    materialize,
    pull,
)
from hotswap.stream.append import LogLimits
from hotswap.stream.disk import LocalDisk
from tests.unit.stream.streams import Stream
from tests.unit.stream.test_log import reach


class CountingDisk(LocalDisk):
    """Counts the bytes of every write."""

    def __init__(self) -> None:
        self.written_bytes = 0

    def write(self, fd: int, offset: int, content: memoryview) -> None:
        self.written_bytes += len(content)
        super().write(fd, offset, content)


@pytest.mark.parametrize(("encoding", "share"), [("gap", 0.01), ("xor", 0.01), ("overwrite", 0.02)])
def test_what_is_written_follows_the_delta(tmp_path: Path, encoding: str, share: float) -> None:
    stream = Stream(tmp_path, length=400_000)
    for _ in range(2):
        stream.add(encoding, share=share)
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    for target in (1, 2):
        delta = sum(p.stat().st_size for p in directory_of(stream.source, target).iterdir())
        disk = CountingDisk()
        report = pull(
            stream.local, stream.source, target, base_dir=stream.base, disk=disk, keep=Keep.LOG
        )
        assert report.mode is PullMode.LOG
        assert report.written_bytes == disk.written_bytes <= 1.5 * delta


def test_what_changed_is_kept_for_updates_in_both_ways(tmp_path: Path) -> None:
    """From version to version, over what is only written elsewhere."""
    stream = Stream(tmp_path, "gap", "xor", "gap")
    patches = PatchCache()
    for target, keep in ((0, Keep.LOG), (1, Keep.LOG), (2, Keep.LOG)):
        pull(stream.local, stream.source, target, base_dir=stream.base, keep=keep, patches=patches)
    materialize(stream.local, patches=patches)
    pull(stream.local, stream.source, 3, base_dir=stream.base, keep=Keep.LOG, patches=patches)
    steps = list(patches._patches.values())
    assert [(step.before.version, step.after.version) for step in steps] == [
        (0, 1),
        (1, 2),
        (2, 2),
        (2, 3),
    ]
    assert [step.size_bytes > 0 for step in steps] == [True, True, False, True]
    assert patches.way(steps[0].before, steps[-1].after) == tuple(steps)


VERSIONS = st.lists(st.sampled_from(["xor", "overwrite", "gap", "full"]), min_size=1, max_size=5)


@settings(max_examples=6, deadline=None)
@given(VERSIONS, st.data())
def test_any_way_to_any_version(versions: list[str], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        stream = Stream(Path(root), length=100, count=2)
        for encoding in versions:
            stream.add(encoding, share=data.draw(st.sampled_from([0.0, 0.02, 0.9])))
        stops = data.draw(st.lists(st.integers(0, len(versions)), max_size=5))
        for stop in stops:
            keep = data.draw(st.sampled_from(Keep))
            limits = LogLimits(versions=data.draw(st.integers(1, 3)), share=100.0)
            reach(stream, stop, keep, limits=limits)
