"""What lies where a pull keeps something of its own: it goes, and what it leads to stays."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotswap.stream import (
    LocalDiskFailed,
    OutsideRoots,
    PullReport,
    pull,
    reading,
    survey_local,
)
from hotswap.stream.state import Reserved
from tests.unit.stream.streams import Stream, contents_of


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Stream(tmp_path, "xor", "overwrite")
    reach(made, 1)
    return made


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A file of somebody's, in a directory of theirs."""
    kept = tmp_path / "elsewhere" / "precious"
    kept.parent.mkdir()
    kept.write_text("kept")
    yield kept
    assert kept.read_text() == "kept"
    assert os.listdir(kept.parent) == ["precious"]


def reach(stream: Stream, target: int) -> PullReport:
    report = pull(stream.local, stream.source, target, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(target)
    assert not Reserved(stream.local).is_pending
    assert list(Reserved(stream.local).home.glob("*.tmp")) == []
    return report


def directory(path: Path, _precious: Path) -> None:
    path.mkdir()


def directory_with_files(path: Path, precious: Path) -> None:
    (path / "deep" / "deeper").mkdir(parents=True)
    (path / "deep" / "file").write_text("x")
    (path / "deep" / "link").symlink_to(precious.parent)


def pipe(path: Path, _precious: Path) -> None:
    os.mkfifo(path)


def link(path: Path, precious: Path) -> None:
    path.symlink_to(precious)


def link_to_a_directory(path: Path, precious: Path) -> None:
    path.symlink_to(precious.parent)


def link_to_nothing(path: Path, precious: Path) -> None:
    path.symlink_to(precious.with_name("absent"))


def link_to_itself(path: Path, _precious: Path) -> None:
    path.symlink_to(path)


def listening(path: Path, _precious: Path) -> None:
    # The name of a socket has to be short.
    here = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def another_name(path: Path, precious: Path) -> None:
    os.link(precious, path)


Plant = Callable[[Path, Path], None]
LINKS = (link, link_to_a_directory, link_to_nothing, link_to_itself)
KINDS: tuple[Plant, ...] = (directory, directory_with_files, pipe, listening, *LINKS)


def put(stream: Stream, name: str, plant: Plant, precious: Path) -> Path:
    """Something else at ``name`` below ``.weight_sync``."""
    path = Reserved(stream.local).home / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    plant(path, precious)
    return path


@pytest.mark.parametrize("plant", KINDS, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize("name", ["state.json", "journal"])
def test_in_the_place_of_state_or_journal_it_makes_the_copy_anew(
    stream: Stream, precious: Path, name: str, plant: Plant
) -> None:
    put(stream, name, plant, precious)
    if name == "journal":
        assert survey_local(stream.local).trouble is not None
    assert reach(stream, 2).mode == "reseed"
    assert reach(stream, 2).mode == "noop"


@pytest.mark.parametrize("plant", [*KINDS, another_name], ids=lambda plant: plant.__name__)
@pytest.mark.parametrize("name", ["state.json.tmp", "journal.tmp", "incoming/model.safetensors"])
def test_in_the_way_of_a_new_file_it_goes(
    stream: Stream, precious: Path, name: str, plant: Plant
) -> None:
    put(stream, name, plant, precious)
    # A copy that is made anew writes all three.
    assert reach(stream, 0).mode == "reseed"


@pytest.mark.parametrize("plant", [pipe, listening, another_name], ids=lambda p: p.__name__)
@pytest.mark.parametrize("target", [0, 2])
def test_in_the_place_of_incoming_it_goes(
    stream: Stream, precious: Path, plant: Plant, target: int
) -> None:
    put(stream, "incoming", plant, precious)
    reach(stream, target)


def test_an_empty_directory_for_a_lock_goes(stream: Stream, precious: Path) -> None:
    put(stream, "lock", directory, precious)
    assert reach(stream, 2).mode == "delta"


@pytest.mark.parametrize(
    "plant", [directory_with_files, listening, *LINKS], ids=lambda p: p.__name__
)
def test_what_cannot_be_locked_is_named(stream: Stream, precious: Path, plant: Plant) -> None:
    """Who removed it could remove the lock that another pull holds by then."""
    lock = put(stream, "lock", plant, precious)
    with pytest.raises(LocalDiskFailed, match="lock cannot be opened") as caught:
        reach(stream, 2)
    assert caught.value.local_version == 1
    if plant is not directory_with_files:
        with pytest.raises(LocalDiskFailed, match="lock cannot be opened"), reading(stream.local):
            raise AssertionError("it was read")
        lock.unlink()
    else:
        shutil.rmtree(lock)
    assert reach(stream, 2).mode == "delta"


def test_a_file_where_pulls_keep_theirs_is_named(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    stream.local.mkdir()
    home = Reserved(stream.local).home
    home.write_text("mine")
    with pytest.raises(OutsideRoots, match=r"\.weight_sync is no directory"):
        reach(stream, 1)
    assert home.read_text() == "mine"


@pytest.mark.parametrize("inside", [".weight_sync", ".weight_sync/incoming", ".weight_sync/x/y"])
def test_nobody_pulls_into_what_another_copy_keeps(stream: Stream, inside: str) -> None:
    before = sorted(stream.local.rglob("*"))
    with pytest.raises(OutsideRoots, match="another local checkpoint keeps for its pulls"):
        pull(stream.local / inside, stream.source, 1, base_dir=stream.base)
    assert sorted(stream.local.rglob("*")) == before


def test_one_that_was_cut_short_while_it_cleared_the_place(stream: Stream) -> None:
    """The strange state had gone, the new one had not come: the weights are still a pull's."""
    state = Reserved(stream.local).state
    state.rename(state.with_name("state.json.tmp"))
    assert reach(stream, 2).mode == "reseed"


def test_what_a_killed_pull_left_takes_no_room(stream: Stream) -> None:
    left = Reserved(stream.local).home / "journal.tmp"
    left.write_bytes(b"half of a journal")
    assert reach(stream, 1).mode == "noop"
