"""The local checkpoint: what is trusted, what is seeded again, what is left alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotswap.stream import (
    LocalDamaged,
    OutsideRoots,
    PullReport,
    SourceNotReady,
    StreamError,
    directory_of,
    pull,
)
from hotswap.stream.layout import INDEX
from hotswap.weights.roots import Roots
from tests.unit.stream.streams import Stream, changed, contents_of, write_checkpoint

FILE = "model-00001-of-00002.safetensors"


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Stream(tmp_path, "xor", "overwrite", "xor")
    reach(made, 1)
    return made


def reach(stream: Stream, target: int) -> PullReport:
    report = pull(stream.local, stream.source, target, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(target)
    return report


def state_of(stream: Stream) -> dict[str, Any]:
    state = json.loads((stream.local / ".weight_sync" / "state.json").read_text())
    assert isinstance(state, dict)
    return state


def test_the_state_is_a_superset_of_slimes(stream: Stream) -> None:
    state = state_of(stream)
    assert state["version"] == "000001"
    assert (state["format"], state["base_version"]) == (1, "000000")
    assert state["base_checkpoint_dir"] == str(stream.base)
    assert state["checkpoint_source_dir"] == str(stream.source)
    assert {str(name) for name in state["files"]} == {*os.listdir(stream.local)} - {".weight_sync"}
    assert len(str(state["index_digest"])) == len(str(state["base_digest"])) == 32


def flip(stream: Stream) -> None:
    path = stream.local / FILE
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def cut(stream: Stream) -> None:
    os.truncate(stream.local / FILE, 100)


def remove(stream: Stream) -> None:
    (stream.local / FILE).unlink()


def link(stream: Stream) -> None:
    (stream.local / FILE).unlink()
    (stream.local / FILE).symlink_to(stream.base / FILE)


def hard_link(stream: Stream) -> None:
    (stream.local / FILE).unlink()
    os.link(stream.base / FILE, stream.local / FILE)


def other_tensors(stream: Stream) -> None:
    (stream.local / INDEX).write_text(json.dumps({"weight_map": {"layers.0.weight": FILE}}))


def no_state(stream: Stream) -> None:
    (stream.local / ".weight_sync" / "state.json").write_text("{")


def slimes_state(stream: Stream) -> None:
    (stream.local / ".weight_sync" / "state.json").write_text('{"version": "000001"}')


@pytest.mark.parametrize(
    "damage", [flip, cut, remove, link, hard_link, other_tensors, no_state, slimes_state]
)
def test_a_damaged_copy_is_seeded_again(stream: Stream, damage: Callable[[Stream], None]) -> None:
    base = contents_of(stream.base)
    damage(stream)
    report = reach(stream, 3)
    assert report.mode == "reseed"
    assert report.reason is not None
    assert contents_of(stream.base) == base
    assert reach(stream, 3).mode == "noop"


def test_a_damaged_copy_that_cannot_be_seeded_again_says_both(stream: Stream) -> None:
    flip(stream)
    (stream.source / "weight_v000001").rename(stream.source / "gone")
    with pytest.raises(LocalDamaged, match=r"has the checksum .* could not be seeded again") as one:
        pull(stream.local, stream.source, 2, base_dir=stream.base)
    assert (one.value.retryable, one.value.local_version) == (False, None)
    (stream.source / "gone").rename(stream.source / "weight_v000001")
    os.truncate(stream.local / FILE, 10)
    shutil.rmtree(directory_of(stream.source, 3))
    with pytest.raises(StreamError, match="version 3 is not there") as caught:
        pull(stream.local, stream.source, 3, base_dir=stream.base)
    assert caught.value.retryable
    assert reach(stream, 2).mode == "reseed"


def other_base(stream: Stream) -> None:
    shutil.copytree(stream.base, stream.base.with_name("base2"))
    stream.base = stream.base.with_name("base2")


def touched_base(stream: Stream) -> None:
    os.utime(stream.base / FILE, ns=(1, 1))


def other_source(stream: Stream) -> None:
    shutil.copytree(stream.source, stream.source.with_name("source2"))
    stream.source = stream.source.with_name("source2")


def published_again(stream: Stream) -> None:
    shutil.rmtree(stream.source)
    stream.source.mkdir()
    del stream.tensors[1:]
    for encoding in ("overwrite", "xor", "full"):
        stream.add(encoding, share=0.3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_base, "made from the base"),
        (touched_base, "base checkpoint was changed"),
        (other_source, "made from the source"),
        (published_again, "another version 1 was published"),
    ],
)
@pytest.mark.parametrize("target", [1, 2])
def test_a_copy_of_something_else_is_seeded_again(
    stream: Stream, change: Callable[[Stream], None], reason: str, target: int
) -> None:
    change(stream)
    report = reach(stream, target)
    assert report.mode == "reseed"
    assert reason in str(report.reason)


@pytest.mark.parametrize("behind", [0, 1])
def test_a_full_version_that_is_published_again_is_another_one(stream: Stream, behind: int) -> None:
    """It has no checksums, and its header is what the one before had."""
    stream.add("full")
    reach(stream, 4)
    kept = stream.tensors.pop()
    shutil.rmtree(directory_of(stream.source, 4))
    stream.tensors.append({name: value[::-1].copy() for name, value in kept.items()})
    write_checkpoint(directory_of(stream.source, 4), stream.tensors[4], files=1)
    if behind:
        stream.add("xor")
    report = reach(stream, 4 + behind)
    assert report.mode == "reseed"
    assert "another version 4 was published" in str(report.reason)
    assert reach(stream, 4 + behind).mode == "noop"


def test_what_was_applied_may_be_gone_from_the_source(stream: Stream) -> None:
    shutil.rmtree(directory_of(stream.source, 1))
    assert reach(stream, 1).mode == "noop"
    assert reach(stream, 3).mode == "fold"


def test_the_base_may_be_gone_while_it_is_not_needed(stream: Stream) -> None:
    stream.base.rename(stream.base.with_name("away"))
    assert reach(stream, 2).mode == "delta"
    with pytest.raises(StreamError, match="not a checkpoint directory") as caught:
        pull(stream.local, stream.source, 1, base_dir=stream.base)
    assert caught.value.local_version == 2


def test_weights_that_no_pull_wrote_are_left_alone(stream: Stream) -> None:
    shutil.rmtree(stream.local)
    write_checkpoint(stream.local, stream.tensors[2])
    with pytest.raises(StreamError, match="which no pull wrote") as caught:
        pull(stream.local, stream.source, 1, base_dir=stream.base)
    assert caught.value.local_version is None
    assert contents_of(stream.local) == stream.at(2)


def test_other_files_in_the_directory_stay(stream: Stream) -> None:
    (stream.local / "notes.txt").write_text("mine")
    reach(stream, 3)
    reach(stream, 0)
    assert (stream.local / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("local", "source", "base", "target"),
    [
        ("base", "source", "base", 0),
        ("base/local", "source", "base", 0),
        (".", "source", "base", 0),
        ("source", "source", "base", 1),
        ("source/local", "source", "base", 1),
        ("local", "local/source", "base", 1),
        ("link", "source", "base", 1),
    ],
)
def test_directories_that_lie_in_one_another(
    tmp_path: Path, local: str, source: str, base: str, target: int
) -> None:
    Stream(tmp_path, "xor")
    (tmp_path / "link").symlink_to("base")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutsideRoots, match="lie in one another"):
        pull(tmp_path / local, tmp_path / source, target, base_dir=tmp_path / base)
    assert sorted(tmp_path.rglob("*")) == before


def test_directories_outside_the_roots(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    (tmp_path / "out").symlink_to("source")
    inside, outside = Roots.of([tmp_path]), Roots.of([tmp_path / "elsewhere"])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutsideRoots, match=r"local_checkpoint_dir .* outside the roots"):
        pull(stream.local, stream.source, 1, base_dir=stream.base, local_allowed=outside)
    for source in (stream.source, tmp_path / "out"):
        with pytest.raises(OutsideRoots, match=r"source_dir .* outside the roots"):
            pull(stream.local, source, 1, base_dir=stream.base, source_allowed=outside)
    with pytest.raises(OutsideRoots, match=r"local_checkpoint_dir") as one:
        pull(stream.local, stream.source, 1, base_dir=stream.base, local_allowed=outside)
    assert (one.value.local_version, one.value.holds) == (None, None), "nobody looked there"
    with pytest.raises(OutsideRoots, match="is no path"):
        pull(Path("a\0b"), stream.source, 1, base_dir=stream.base)
    assert sorted(tmp_path.rglob("*")) == before
    pull(
        stream.local,
        stream.source,
        1,
        base_dir=stream.base,
        local_allowed=inside,
        source_allowed=inside,
    )
    assert contents_of(stream.local) == stream.at(1)
    with pytest.raises(OutsideRoots, match="source_dir") as two:
        pull(stream.local, stream.source, 2, base_dir=stream.base, source_allowed=outside)
    assert two.value.local_version == 1


def a_file(path: Path) -> None:
    path.write_text("x")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("put", [a_file, a_link_to_nothing])
@pytest.mark.parametrize("below", ["", "deeper"])
def test_what_can_be_no_directory_is_told(
    tmp_path: Path, put: Callable[[Path], None], below: str
) -> None:
    stream = Stream(tmp_path, "xor")
    put(tmp_path / "taken")
    if below and put is a_link_to_nothing:
        stream.local = tmp_path / ("n" * 300)
    else:
        stream.local = tmp_path / "taken" / below
    with pytest.raises(StreamError, match=r"cannot be a directory \(.*choose another") as caught:
        reach(stream, 1)
    assert type(caught.value) is StreamError
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["absent", "loop", "n" * 300])
def test_a_source_that_is_no_directory_says_why(stream: Stream, name: str) -> None:
    root = stream.base.parent
    (root / "loop").symlink_to("loop")
    with pytest.raises(SourceNotReady, match=r"cannot be listed \(.*wanted version 1") as caught:
        pull(stream.local, root / name, 1, base_dir=stream.base)
    assert caught.value.local_version == 1


def test_a_version_that_is_a_link_out_of_the_roots(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    directory = directory_of(stream.source, 1)
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    allowed = Roots.of([stream.source])
    with pytest.raises(OutsideRoots, match="outside the weights roots"):
        pull(stream.local, stream.source, 1, base_dir=stream.base, source_allowed=allowed)


@pytest.mark.parametrize("target", [-1, True, 1.0, "1", None])
def test_a_target_that_is_no_version(tmp_path: Path, target: Any) -> None:
    stream = Stream(tmp_path)
    with pytest.raises(StreamError, match="wanted an integer from 0 on"):
        pull(stream.local, stream.source, target, base_dir=stream.base)


def test_where_files_cannot_be_pinned_a_pull_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_PATH")
    with pytest.raises(StreamError, match="pull on Linux"):
        pull(tmp_path / "local", tmp_path / "source", 0, base_dir=tmp_path / "base")
    assert list(tmp_path.iterdir()) == []


def test_a_full_version_that_is_not_whole_is_not_ready(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "full")
    directory = directory_of(stream.source, 2)
    weights = directory / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    for left in ("short", "temporary", "nothing"):
        with pytest.raises(SourceNotReady):
            pull(stream.local, stream.source, 2, base_dir=stream.base)
        if left == "short":
            weights.rename(weights.with_suffix(".safetensors.tmp"))
        else:
            shutil.rmtree(directory)
            directory.mkdir()
    directory.rmdir()
    write_checkpoint(directory, stream.tensors[2], files=2)
    reach(stream, 2)


def test_a_delta_without_its_index_is_no_full_version(stream: Stream) -> None:
    index = directory_of(stream.source, 2) / INDEX
    index.rename(index.with_suffix(".tmp"))
    with pytest.raises(SourceNotReady, match="holds deltas and there is no") as caught:
        pull(stream.local, stream.source, 2, base_dir=stream.base)
    assert (caught.value.local_version, caught.value.retryable) == (1, True)
    index.with_suffix(".tmp").rename(index)
    assert reach(stream, 2).mode == "delta"


def test_a_full_version_with_a_directory_of_another_shape(stream: Stream) -> None:
    stream.tensors.append(changed(stream.tensors[0], 4))
    write_checkpoint(directory_of(stream.source, 4), stream.tensors[4], files=1)
    report = reach(stream, 4)
    assert (report.mode, report.start) == ("reseed", 4)
    assert not (stream.local / INDEX).exists()
    assert not (stream.local / FILE).exists()
