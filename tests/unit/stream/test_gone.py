"""A version that was pruned will not come, and nobody is told to wait for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hotswap.stream import Keep, SourceNotReady, VersionMissing, directory_of, prune, pull
from hotswap.stream.layout import INDEX
from tests.unit.stream.faulty_store import FaultyStore, objects, uploaded
from tests.unit.stream.streams import Stream, contents_of, held_contents

every_keep = pytest.mark.parametrize("keep", Keep)


def reach(stream: Stream, target: int, keep: Keep = Keep.FILES) -> None:
    pull(stream.local, stream.source, target, base_dir=stream.base, threads=1, keep=keep)
    assert held_contents(stream.local) == stream.at(target)


def refusal(stream: Stream, target: int, keep: Keep = Keep.FILES) -> VersionMissing:
    with pytest.raises(VersionMissing) as caught:
        pull(stream.local, stream.source, target, base_dir=stream.base, threads=1, keep=keep)
    assert not caught.value.retryable
    return caught.value


@every_keep
@pytest.mark.parametrize("encoding", ["xor", "overwrite", "gap", "full"])
def test_a_pruned_target_names_the_oldest_that_is_left(
    encoding: str, keep: Keep, tmp_path: Path
) -> None:
    stream = Stream(tmp_path, encoding, encoding, "full", encoding, encoding)
    reach(stream, 0, keep)
    assert prune(stream.source, keep=2).kept[0] == (4 if encoding == "full" else 3)
    error = refusal(stream, 2, keep)
    oldest = 4 if encoding == "full" else 3
    assert "version 2 is gone (it was pruned, or never published): 5 is the newest" in str(error)
    assert f"the oldest that can still be pulled is {oldest}" in str(error)
    assert error.local_version == 0
    assert str(error).endswith(f"{stream.local} holds version 0, whole")
    reach(stream, oldest, keep)
    reach(stream, 5, keep)


def test_what_is_newer_than_everything_may_still_come(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "full")
    for spoil in (None, directory_of(stream.source, 3).mkdir):
        if spoil is not None:
            spoil()
        with pytest.raises(SourceNotReady) as caught:
            pull(stream.local, stream.source, 3, base_dir=stream.base)
        assert caught.value.retryable


def test_one_that_is_there_and_not_whole_is_waited_for(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor", "xor")
    index = directory_of(stream.source, 2) / INDEX
    content = index.read_bytes()
    index.unlink()
    with pytest.raises(SourceNotReady) as caught:
        pull(stream.local, stream.source, 2, base_dir=stream.base)
    assert caught.value.retryable
    index.write_bytes(content)
    reach(stream, 2)


def test_what_is_applied_is_a_way_too(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor", "xor", "xor")
    reach(stream, 2)
    for version in (1, 2):
        shutil.rmtree(directory_of(stream.source, version))
    # Back to 1 takes a new copy, and neither the base nor a full version leads to any.
    assert "no new copy can be made of them; publish a full version" in str(refusal(stream, 1))
    assert contents_of(stream.local) == stream.at(2)
    reach(stream, 4)


def test_a_gap_further_back_advises_no_wait(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor", "xor")
    shutil.rmtree(directory_of(stream.source, 2))
    error = refusal(stream, 3)
    assert "version 2 is missing on the way to 3" in str(error)
    assert "pull again" not in str(error)
    assert "pull again" not in str(refusal(stream, 2))


@pytest.mark.parametrize(
    ("encodings", "missing", "can", "told"),
    [
        (("xor", "xor", "xor", "xor"), (2,), (1,), "of what is there only 1 can still"),
        (
            ("xor", "xor", "xor", "full", "gap"),
            (2,),
            (1, 4, 5),
            "only 1, 4 to 5 can still",
        ),
        (
            ("xor", "xor", "full", "gap", "xor", "xor"),
            (1, 5),
            (3, 4),
            "only 3 to 4 can",
        ),
        (("xor", "xor", "full", "gap"), (1,), (3, 4), "the oldest that can still be pulled is 3"),
    ],
)
def test_what_can_be_pulled_around_a_gap(
    encodings: tuple[str, ...],
    missing: tuple[int, ...],
    can: tuple[int, ...],
    told: str,
    tmp_path: Path,
) -> None:
    stream = Stream(tmp_path, *encodings)
    for version in missing:
        shutil.rmtree(directory_of(stream.source, version))
    assert told in str(refusal(stream, missing[0]))
    for version in range(1, len(stream.tensors)):
        shutil.rmtree(stream.local, ignore_errors=True)
        (reach if version in can else refusal)(stream, version)


def test_a_source_that_cannot_be_listed_any_more_is_not_ready(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    shutil.rmtree(stream.source)
    with pytest.raises(SourceNotReady):
        pull(stream.local, stream.source, 1, base_dir=stream.base)


def test_a_version_that_was_pruned_from_an_object_store(tmp_path: Path) -> None:
    stream, place = Stream(tmp_path, "xor", "full", "xor"), objects(FaultyStore(), [])
    uploaded(stream.source, place)
    assert prune(place, keep=1).removed == (1,)
    with pytest.raises(VersionMissing, match="the oldest that can still be pulled is 2") as caught:
        pull(stream.local, place, 1, base_dir=stream.base, threads=1)
    assert "version 1 is gone (it was pruned, or never published): 3 is" in str(caught.value)
    assert not caught.value.retryable
    with pytest.raises(SourceNotReady):
        pull(stream.local, place, 4, base_dir=stream.base, threads=1)
