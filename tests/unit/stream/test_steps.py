"""A range of versions that memory is not taken for at once: in steps, each a whole version."""

from __future__ import annotations

import errno
import shutil
import tracemalloc
from pathlib import Path

import pytest

from hotswap.stream import (
    DeltaDamaged,
    Keep,
    LocalDamaged,
    LocalDiskFailed,
    PullReport,
    SourceNotReady,
    publish_delta,
    pull,
)
from hotswap.stream import source as source_module
from hotswap.stream.disk import Disk, LocalDisk
from hotswap.stream.layout import directory_of
from tests.unit.stream.crash_setups import add_aggregate
from tests.unit.stream.faulty_disk import FaultyDisk
from tests.unit.stream.streams import Stream, changed, contents_of, held_contents
from tests.unit.stream.test_field_faults import FILE, spoil

ENCODINGS = ("xor", "overwrite", "gap", "xor", "overwrite")
STEPS = {1: 5, 2700: 3, 10**6: 1}
"""How much may be in memory, and how many steps five versions of about 1100 bytes take."""


@pytest.fixture(params=STEPS)
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(source_module, "_FOLD_BYTES", request.param)
    return STEPS[request.param]


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path, *ENCODINGS)


class Stating(LocalDisk):
    """Counts the states that were put in their place."""

    def __init__(self) -> None:
        self.states = 0

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.states += new.name == "state.json"


def reach(stream: Stream, target: int, disk: Disk | None = None) -> PullReport:
    report = pull(stream.local, stream.source, target, base_dir=stream.base, threads=1, disk=disk)
    assert contents_of(stream.local) == stream.at(target)
    return report


def test_several_versions_behind(stream: Stream, steps: int) -> None:
    reach(stream, 0)
    disk = Stating()
    report = reach(stream, 5, disk)
    assert (report.mode, report.version, report.start) == ("fold", 5, 0)
    assert report.versions == (1, 2, 3, 4, 5)
    assert disk.states == steps
    assert report.read_bytes > 5 * 100
    assert {"read", "apply", "write"} <= report.seconds.keys()


def test_a_new_copy(stream: Stream, steps: int) -> None:
    disk = Stating()
    report = reach(stream, 5, disk)
    assert (report.mode, report.start, report.versions) == ("seed", 0, (1, 2, 3, 4, 5))
    assert disk.states == steps
    again = reach(stream, 4)
    assert (again.mode, again.versions) == ("reseed", (1, 2, 3, 4))
    assert "is behind the applied 5" in str(again.reason)


def test_from_a_full_version_and_from_an_aggregate(stream: Stream, steps: int) -> None:
    stream.add("full")
    for encoding in ENCODINGS:
        stream.add(encoding)
    disk = Stating()
    report = reach(stream, 11, disk)
    assert (report.start, report.versions) == (6, (7, 8, 9, 10, 11))
    assert disk.states == steps
    shutil.rmtree(stream.local)
    add_aggregate(stream, 2)
    assert reach(stream, 5).aggregate


def test_a_version_that_is_damaged_leaves_the_step_before_it(stream: Stream, steps: int) -> None:
    reach(stream, 0)
    path = directory_of(stream.source, 5) / FILE
    whole = path.read_bytes()
    spoil(path, len(whole) - 100)
    with pytest.raises(DeltaDamaged, match="version 5") as caught:
        reach(stream, 5)
    held = caught.value.local_version
    assert held == {5: 4, 3: 4, 1: 0}[steps]
    assert contents_of(stream.local) == stream.at(held)
    path.write_bytes(whole)
    assert reach(stream, 5).start == held


def test_a_disk_that_fails_anywhere_leaves_a_whole_version(stream: Stream, steps: int) -> None:
    reach(stream, 0)
    kept = stream.local.with_name("kept")
    shutil.copytree(stream.local, kept)
    counting = FaultyDisk()
    reach(stream, 5, counting)
    for at in range(0, len(counting.calls), 29):
        shutil.rmtree(stream.local)
        shutil.copytree(kept, stream.local)

        def fails(number: int, at: int = at) -> None:
            if number >= at:
                raise OSError(errno.EIO, "Input/output error")

        with pytest.raises(LocalDiskFailed) as caught:
            pull(
                stream.local,
                stream.source,
                5,
                base_dir=stream.base,
                threads=1,
                disk=FaultyDisk(fails),
            )
        if caught.value.local_version is not None:
            assert contents_of(stream.local) == stream.at(caught.value.local_version)
        reach(stream, 5)


def test_a_stream_that_is_published_again_between_steps(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never for ever: who publishes again and again is told, once what is there was whole."""
    monkeypatch.setattr(source_module, "_FOLD_BYTES", 1)
    reach(stream, 0)

    class Republishing(LocalDisk):
        def rename(self, old: Path, new: Path) -> None:
            super().rename(old, new)
            if new.name == "state.json":
                shutil.rmtree(stream.source)
                stream.source.mkdir()
                del stream.tensors[1:]
                for encoding in ENCODINGS:
                    stream.add(encoding, share=0.4)

    with pytest.raises(SourceNotReady, match="was published again while it was pulled") as caught:
        reach(stream, 5, Republishing())
    assert caught.value.retryable
    assert reach(stream, 5).version == 5


def test_memory_does_not_grow_with_the_number_of_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "_FOLD_BYTES", 600_000)
    stream = Stream(tmp_path, length=100_000, count=4)
    for _ in range(8):
        stream.add("xor", share=0.9)
    peaks = []
    for first, last in ((0, 1), (1, 8)):
        reach(stream, first)
        tracemalloc.start()
        try:
            pull(stream.local, stream.source, last, base_dir=stream.base, threads=1)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert contents_of(stream.local) == stream.at(8)
    # A version is 380 kB; seven of them would be 2.7 MB.
    assert peaks[1] - peaks[0] < 1_000_000


@pytest.mark.parametrize("keep", list(Keep))
def test_damage_that_a_later_step_finds_is_mended_up_to_the_target(
    stream: Stream, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that does not read a tensor passes over what is wrong with it."""
    old = stream.tensors[-1]
    for version, name in ((6, "layers.0.weight"), (7, "layers.3.weight")):
        stream.tensors.append(old | {name: changed(old, version)[name]})
        publish_delta(stream.source, version, [[(name, old[name], stream.tensors[-1][name])]])
        old = stream.tensors[-1]
    monkeypatch.setattr(source_module, "_FOLD_BYTES", 1)
    reach(stream, 5)
    damaged = stream.local / "model-00002-of-00002.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    report = pull(stream.local, stream.source, 7, base_dir=stream.base, threads=1, keep=keep)
    assert held_contents(stream.local) == stream.at(7)
    assert (report.mode, report.start, report.version) == ("reseed", 0, 7)
    assert report.versions == tuple(range(1, 8))
    assert "'layers.3.weight' " in str(report.reason)


def test_damage_that_is_there_again_is_said(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never for ever: a disk that damages what it is given is not written to again and again."""
    monkeypatch.setattr(source_module, "_FOLD_BYTES", 1)
    reach(stream, 1)

    class Damaging(LocalDisk):
        def rename(self, old: Path, new: Path) -> None:
            super().rename(old, new)
            if new.name == "state.json":
                for path in stream.local.glob("*.safetensors"):
                    path.write_bytes(path.read_bytes()[:-50] + bytes(50))

    with pytest.raises(LocalDamaged, match="and so was one that was made anew: see to the disk"):
        reach(stream, 5, Damaging())
    reach(stream, 5)
