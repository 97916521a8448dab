"""What can be no source of versions is not waited for; what may become one is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.stream import SourceNotReady, SourceUnusable, directory_of, pull
from hotswap.stream.layout import INDEX
from hotswap.stream.no_source import no_source
from hotswap.stream.place import place_of
from tests.unit.stream.faulty_store import FaultyStore, objects, uploaded
from tests.unit.stream.streams import Stream, contents_of


def torch_files(place: Path) -> None:
    (place / "pytorch_model.bin").write_bytes(b"PK")


def an_index(place: Path) -> None:
    (place / INDEX).write_text("{}")


def a_shard(place: Path) -> None:
    (place / "model-00001-of-00002.safetensors").write_bytes(b"")


def a_local_checkpoint(place: Path) -> None:
    (place / ".weight_sync").mkdir()


def refusal(stream: Stream, source: Path) -> str:
    """A pull from ``source`` is refused for good, and what was there stays."""
    with pytest.raises(SourceUnusable) as caught:
        pull(stream.local, source, 2, base_dir=stream.base, threads=1)
    assert (caught.value.retryable, caught.value.local_version) == (False, 1)
    assert contents_of(stream.local) == stream.at(1)
    return str(caught.value)


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Stream(tmp_path, "xor", "gap")
    pull(made.local, made.source, 1, base_dir=made.base, threads=1)
    return made


@pytest.mark.parametrize(
    ("fills", "says"),
    [
        (torch_files, "is a checkpoint and has no published version"),
        (an_index, "is a checkpoint and has no published version"),
        (a_shard, "is a checkpoint and has no published version"),
        (a_local_checkpoint, "is a local checkpoint, which versions are pulled into"),
    ],
)
def test_it_says_what_is_there(
    stream: Stream, tmp_path: Path, fills: Callable[[Path], None], says: str
) -> None:
    place = tmp_path / "other"
    place.mkdir()
    fills(place)
    assert f"{place} {says}" in refusal(stream, place)
    # Whatever else lies there: with a version in it, it is a source.
    directory_of(stream.source, 2).rename(directory_of(place, 2))
    assert no_source(place) is None


def test_a_file_is_no_source(stream: Stream) -> None:
    said = refusal(stream, stream.base / "config.json")
    assert "config.json is a file, wanted a directory of published versions" in said


def test_one_version_is_not_the_directory_that_it_is_in(stream: Stream) -> None:
    said = refusal(stream, directory_of(stream.source, 2))
    assert "is version 2 itself, wanted a directory of published versions" in said
    assert pull(stream.local, stream.source, 2, base_dir=stream.base, threads=1).version == 2


def test_what_may_become_one_is_waited_for(stream: Stream, tmp_path: Path) -> None:
    empty, other = tmp_path / "empty", tmp_path / "other"
    empty.mkdir()
    other.mkdir()
    (other / "run.log").write_text("a trainer's own")
    for place in (empty, other, tmp_path / "absent"):
        with pytest.raises(SourceNotReady) as caught:
            pull(stream.local, place, 2, base_dir=stream.base, threads=1)
        assert caught.value.retryable


def test_version_0_needs_no_source(stream: Stream) -> None:
    assert pull(stream.local, stream.base, 0, base_dir=stream.base, threads=1).version == 0
    assert contents_of(stream.local) == stream.at(0)


def test_a_checkpoint_in_an_object_store(stream: Stream) -> None:
    fs = FaultyStore()
    place = objects(fs)
    uploaded(stream.base, place)
    with pytest.raises(SourceUnusable, match="is a checkpoint and has no published version"):
        pull(stream.local, place, 2, base_dir=stream.base, threads=1)
    uploaded(stream.source, place)
    assert pull(stream.local, place, 2, base_dir=stream.base, threads=1).version == 2


def test_what_cannot_be_listed_is_none_of_it(tmp_path: Path) -> None:
    fs = FaultyStore()

    def refuses(request: str, path: str) -> None:
        raise PermissionError("Access Denied")

    fs.before = refuses
    assert no_source(objects(fs)) is None
    assert no_source(place_of(str(tmp_path / ("a" * 300)))) is None
    assert no_source(Path("a\0b")) is None
