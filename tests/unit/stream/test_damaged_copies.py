"""A bit of a local copy that has turned: who finds it, who is told, and what mends it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.stream import (
    Keep,
    LocalDamaged,
    PullReport,
    StreamError,
    materialize,
    pull,
    verify_local,
)
from hotswap.stream.applied import is_applied
from hotswap.stream.log import holding_in
from hotswap.stream.places import Places
from hotswap.stream.state import Reserved
from hotswap.stream.suspect import is_suspect, suspected
from tests.unit.stream.streams import Stream, contents_of, held_contents

FILE = "model-00001-of-00002.safetensors"
ENCODINGS = ("xor", "overwrite", "gap")


def flip(path: Path, at: int = -1) -> None:
    """Turn one bit of a file, whose times stay as they are."""
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def a_file(local: Path) -> None:
    flip(local / FILE)


def a_blob(local: Path) -> None:
    [blob] = Reserved(local).log.iterdir()
    # Past the header, in the middle of the first blob: not one that a decompressor ignores.
    content = blob.read_bytes()
    flip(blob, 8 + int.from_bytes(content[:8], "little") + 40)


Damage = Callable[[Path], None]
WAYS = [
    *((encoding, Keep.FILES, a_file) for encoding in ENCODINGS),
    *((encoding, Keep.COPIES, a_file) for encoding in ENCODINGS),
    *((encoding, Keep.LOG, a_file) for encoding in ENCODINGS),
    *((encoding, Keep.LOG, a_blob) for encoding in ENCODINGS),
]
EVERY_WAY = pytest.mark.parametrize(("encoding", "keep", "damage"), WAYS)
A_FEW = pytest.mark.parametrize(
    ("encoding", "keep", "damage"),
    [
        ("gap", Keep.FILES, a_file),
        ("xor", Keep.COPIES, a_file),
        ("xor", Keep.LOG, a_file),
        ("overwrite", Keep.LOG, a_blob),
    ],
)


def reach(stream: Stream, target: int, keep: Keep, *, check: bool = False) -> PullReport:
    return pull(
        stream.local,
        stream.source,
        target,
        base_dir=stream.base,
        threads=2,
        keep=keep,
        check=check,
    )


def damaged(root: Path, encoding: str, keep: Keep, damage: Damage) -> Stream:
    """A copy at version 1, of which a bit has turned."""
    stream = Stream(root, encoding, encoding)
    reach(stream, 0, keep)
    reach(stream, 1, keep)
    damage(stream.local)
    return stream


def looks_suspect(stream: Stream) -> bool:
    held = holding_in(stream.local)
    return held is not None and is_suspect(Reserved(stream.local), held)


@EVERY_WAY
def test_what_verify_advises_mends_it(
    encoding: str, keep: Keep, damage: Damage, tmp_path: Path
) -> None:
    stream = damaged(tmp_path, encoding, keep, damage)
    assert reach(stream, 1, keep).mode == "noop"
    faults = verify_local(stream.local, threads=2).faults
    assert faults
    for fault in faults:
        assert fault.kind == "LocalDamaged"
        assert "pull the version again with --check" in fault.message
        assert "publish" not in fault.message
    report = reach(stream, 1, keep, check=True)
    assert report.mode == "reseed"
    assert report.reason is not None
    assert "layers." in report.reason
    assert held_contents(stream.local) == stream.at(1)
    assert verify_local(stream.local, threads=2).faults == ()


@A_FEW
def test_it_is_found_on_the_way_to_another_version_too(
    encoding: str, keep: Keep, damage: Damage, tmp_path: Path
) -> None:
    stream = damaged(tmp_path, encoding, keep, damage)
    assert reach(stream, 2, keep, check=True).mode == "reseed"
    assert held_contents(stream.local) == stream.at(2)


@pytest.mark.parametrize("keep", Keep)
def test_a_whole_copy_is_read_and_stays(keep: Keep, tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "gap")
    reach(stream, 0, keep)
    reach(stream, 1, keep)
    size = sum(map(len, stream.at(1).values()))
    report = reach(stream, 1, keep, check=True)
    assert (report.mode, report.written_bytes) == ("noop", 0)
    assert report.read_bytes >= size
    assert "verify" in report.seconds
    report = reach(stream, 2, keep, check=True)
    assert report.mode == ("log" if keep is Keep.LOG else "delta")
    assert held_contents(stream.local) == stream.at(2)


@A_FEW
def test_one_that_cannot_be_mended_is_told_and_trusted_by_nobody(
    encoding: str, keep: Keep, damage: Damage, tmp_path: Path
) -> None:
    stream = damaged(tmp_path, encoding, keep, damage)
    stream.base.rename(tmp_path / "gone")
    with pytest.raises(LocalDamaged, match="could not be seeded again") as caught:
        reach(stream, 1, keep, check=True)
    assert caught.value.local_version is None
    assert "holds no whole version" in str(caught.value)
    with pytest.raises(StreamError):
        reach(stream, 1, keep)
    (tmp_path / "gone").rename(stream.base)
    assert reach(stream, 1, keep).mode == "reseed"
    assert held_contents(stream.local) == stream.at(1)


@A_FEW
def test_what_a_reader_found_the_next_pull_looks_for(
    encoding: str, keep: Keep, damage: Damage, tmp_path: Path
) -> None:
    stream = damaged(tmp_path, encoding, keep, damage)
    places = Places(local=stream.local, source=stream.source, base=stream.base)
    assert is_applied(places, 1)
    assert suspected(stream.local)
    assert looks_suspect(stream)
    assert not is_applied(places, 1)
    assert reach(stream, 1, keep).mode == "reseed"
    assert held_contents(stream.local) == stream.at(1)
    assert not Reserved(stream.local).suspect.exists()
    assert is_applied(places, 1)


def test_a_suspicion_that_is_wrong_costs_one_look(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    reach(stream, 1, Keep.FILES)
    assert suspected(stream.local)
    assert "verify" in reach(stream, 1, Keep.FILES).seconds
    assert "verify" not in reach(stream, 1, Keep.FILES).seconds


def test_a_suspicion_of_another_state_does_not_count(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    reach(stream, 1, Keep.FILES)
    assert suspected(stream.local)
    text = Reserved(stream.local).suspect.read_bytes()
    reach(stream, 2, Keep.FILES)
    Reserved(stream.local).suspect.write_bytes(text)
    assert not looks_suspect(stream)
    assert "verify" not in reach(stream, 2, Keep.FILES).seconds
    assert not Reserved(stream.local).suspect.exists()


@pytest.mark.parametrize("what", ["directory", "link", "fifo"])
def test_what_lies_in_its_place_is_removed_and_not_followed(what: str, tmp_path: Path) -> None:
    stream, elsewhere = Stream(tmp_path, "xor"), tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    reach(stream, 1, Keep.FILES)
    place = Reserved(stream.local).suspect
    if what == "directory":
        place.mkdir()
    elif what == "link":
        place.symlink_to(elsewhere)
    else:
        os.mkfifo(place)
    suspected(stream.local)
    assert reach(stream, 1, Keep.FILES).mode == "noop"
    assert elsewhere.read_text() == "mine"
    assert not os.path.lexists(place)


def test_nobody_suspects_what_no_pull_keeps(tmp_path: Path) -> None:
    (tmp_path / "somebody's").mkdir()
    assert suspected(tmp_path / "somebody's")
    assert os.listdir(tmp_path / "somebody's") == []


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("damage", [a_file, a_blob])
def test_a_log_that_cannot_be_written_in_is_made_anew_by_the_next_pull(
    encoding: str, damage: Damage, tmp_path: Path
) -> None:
    stream = damaged(tmp_path, encoding, Keep.LOG, damage)
    with pytest.raises(LocalDamaged, match="pull it again, which makes the copy anew") as caught:
        materialize(stream.local, threads=1)
    assert not caught.value.retryable
    assert contents_of(stream.local).keys() == stream.at(0).keys()
    assert reach(stream, 1, Keep.LOG).mode == "reseed"
    assert materialize(stream.local, threads=1).mode == "noop"
    assert contents_of(stream.local) == stream.at(1)
