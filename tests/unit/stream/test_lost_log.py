"""A log that nothing which counts speaks of: damage, until a pull made the copy anew."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.stream import (
    Keep,
    LocalDamaged,
    LocalDiskFailed,
    PullMode,
    StreamError,
    materialize,
    pull,
    reading,
    verify_local,
)
from hotswap.stream.disk import LocalDisk
from hotswap.stream.log import check_plain, file_of, holding_in
from hotswap.stream.state import Reserved
from hotswap.stream.stored import StoredTensors
from tests.unit.stream.streams import Stream, contents_of
from tests.unit.stream.test_log import held, logged, reach


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Three versions, of which the second is in the log."""
    made = Stream(tmp_path, "xor", "gap", "overwrite")
    reach(made, 1, Keep.FILES)
    reach(made, 2)
    return made


def other_state(stream: Stream) -> None:
    """As by a pull of a hotswap that knows of no log."""
    path = Reserved(stream.local).state
    path.write_text(path.read_text() + "\n")


def other_format(stream: Stream) -> None:
    edit_log(stream, format=2)


def gap_in_it(stream: Stream) -> None:
    versions = json.loads(Reserved(stream.local).log_marker.read_text())["versions"]
    edit_log(stream, versions=[version | {"base_version": "000000"} for version in versions])


def no_number(stream: Stream) -> None:
    versions = json.loads(Reserved(stream.local).log_marker.read_text())["versions"]
    edit_log(stream, versions=[version | {"version": "../2"} for version in versions])


def other_checksum(stream: Stream) -> None:
    versions = json.loads(Reserved(stream.local).log_marker.read_text())["versions"]
    edit_log(stream, versions=[version | {"checksum_format": "md5"} for version in versions])


def other_bit(stream: Stream) -> None:
    """Well-formed, and of a tensor of another name."""
    path = Reserved(stream.local).log_marker
    path.write_bytes(path.read_bytes().replace(b"layers.0", b"layers.1", 1))


def junk(stream: Stream) -> None:
    Reserved(stream.local).log_marker.write_text("[" * 10_000)


def directory(stream: Stream) -> None:
    Reserved(stream.local).log_marker.unlink()
    (Reserved(stream.local).log_marker / "in it").mkdir(parents=True)


def nothing(stream: Stream) -> None:
    Reserved(stream.local).log_marker.unlink()


def edit_log(stream: Stream, **change: object) -> None:
    path = Reserved(stream.local).log_marker
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    "change",
    [
        other_state,
        other_format,
        gap_in_it,
        no_number,
        other_checksum,
        junk,
        other_bit,
        directory,
        nothing,
    ],
)
def test_a_log_that_does_not_count_is_damage_until_a_pull_has_made_the_copy_anew(
    stream: Stream, change: Callable[[Stream], None]
) -> None:
    """Its files alone are an older version, and nobody takes them for the one that was held."""
    change(stream)
    assert holding_in(stream.local) is None
    for reader in (verify_local, check_plain, StoredTensors.at):
        with pytest.raises(LocalDamaged, match="pull it again, which makes the copy anew"):
            reader(stream.local)
    with pytest.raises(LocalDamaged), reading(stream.local):
        raise AssertionError("an older version was read")
    away = stream.source.rename(stream.source.with_name("away"))
    with pytest.raises(StreamError, match="holds no whole version"):
        reach(stream, 2)
    with pytest.raises(LocalDamaged), reading(stream.local):
        raise AssertionError("what was refused before was read")
    away.rename(stream.source)
    assert reach(stream, 2).mode is PullMode.RESEED
    assert logged(stream) == []
    assert verify_local(stream.local).faults == ()
    with reading(stream.local):
        assert contents_of(stream.local) == stream.at(2)


class UnnamedVersions(LocalDisk):
    """Fails when a marker that names versions is to take its place."""

    def rename(self, old: Path, new: Path) -> None:
        if new.name == "log.json" and json.loads(old.read_text())["versions"]:
            raise OSError(errno.EIO, "no")
        super().rename(old, new)


def test_a_log_that_was_begun_and_has_no_version_yet_is_no_damage(stream: Stream) -> None:
    """A pull ended when its first version was there, and not yet named."""
    materialize(stream.local, threads=1)
    with pytest.raises(LocalDiskFailed, match="holds version 2, whole"):
        pull(
            stream.local,
            stream.source,
            3,
            base_dir=stream.base,
            threads=1,
            keep=Keep.LOG,
            disk=UnnamedVersions(),
        )
    assert os.listdir(Reserved(stream.local).log) == [file_of(3)]
    with reading(stream.local):
        assert contents_of(stream.local) == stream.at(2)
    assert held(stream).log is None
    assert reach(stream, 3).mode is PullMode.LOG
