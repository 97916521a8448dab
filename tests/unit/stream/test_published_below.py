"""A version below the one that is held, published again: the versions after it are sound."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hotswap.stream import DeltaDamaged, Keep, PullReport, publish_delta, pull
from hotswap.stream import source as source_module
from hotswap.stream.layout import directory_of
from tests.unit.stream.streams import Stream, changed, contents_of, held_contents
from tests.unit.stream.test_field_faults import FILE, spoil

FIRST, SECOND = "layers.0.weight", "layers.1.weight"


def publish_one(stream: Stream, version: int, name: str, *, seed: int) -> None:
    """Version ``version``, which changes tensor ``name`` alone."""
    old = stream.tensors[version - 1]
    new = old | {name: changed(old, seed)[name]}
    stream.tensors[version:] = [new]
    publish_delta(stream.source, version, [[(name, old[name], new[name])]], encoding="xor")


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Held at 2. Then version 1 is another one, 2 the same file, and 3 built on them."""
    made = Stream(tmp_path)
    publish_one(made, 1, FIRST, seed=1)
    publish_one(made, 2, SECOND, seed=2)
    second = made.tensors[2][SECOND]
    reach(made, 2, Keep.FILES)
    shutil.rmtree(directory_of(made.source, 1))
    publish_one(made, 1, FIRST, seed=10)
    made.tensors.append(made.tensors[1] | {SECOND: second})
    publish_one(made, 3, FIRST, seed=3)
    return made


def reach(stream: Stream, target: int, keep: Keep) -> PullReport:
    return pull(stream.local, stream.source, target, base_dir=stream.base, threads=1, keep=keep)


@pytest.mark.parametrize("keep", list(Keep))
def test_what_follows_it_is_pulled_by_a_new_copy(stream: Stream, keep: Keep) -> None:
    report = reach(stream, 3, keep)
    assert (report.mode, report.start, report.versions) == ("reseed", 0, (1, 2, 3))
    assert "gives bytes with the checksum" in str(report.reason)
    assert "publish" not in str(report.reason)
    assert held_contents(stream.local) == stream.at(3)


def test_a_version_that_is_damaged_is_blamed_all_the_same(stream: Stream) -> None:
    before = contents_of(stream.local)
    spoil(directory_of(stream.source, 3) / FILE, -20)
    with pytest.raises(DeltaDamaged, match="version 3, tensor 'layers") as caught:
        reach(stream, 3, Keep.FILES)
    assert caught.value.local_version == 2
    assert contents_of(stream.local) == before
    assert "published again" not in str(caught.value)


def test_what_cannot_be_tried_is_said(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in steps: the first of them would take the copy behind what it holds."""
    before = contents_of(stream.local)
    monkeypatch.setattr(source_module, "_FOLD_BYTES", 1)
    with pytest.raises(DeltaDamaged, match="pull into another directory") as caught:
        reach(stream, 3, Keep.FILES)
    assert "more than memory is taken for at once" in str(caught.value)
    assert caught.value.local_version == 2
    assert contents_of(stream.local) == before
