"""Versions beside the files of a local checkpoint: what is held, what is seen, what is written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.stream import (
    Keep,
    LocalBusy,
    LocalDamaged,
    PullMode,
    PullReport,
    StreamError,
    directory_of,
    materialize,
    pull,
    reading,
    survey_local,
    verify_local,
)
from hotswap.stream.append import LogLimits
from hotswap.stream.applied import is_applied
from hotswap.stream.lock import exclusive
from hotswap.stream.log import Holding, file_of, holding_in
from hotswap.stream.log_files import OpenLog
from hotswap.stream.places import Places
from hotswap.stream.state import Reserved
from tests.unit.stream.streams import Stream, contents_of, held_contents

FILE = "model-00001-of-00002.safetensors"


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Three versions, of which the second is in the log."""
    made = Stream(tmp_path, "xor", "gap", "overwrite")
    reach(made, 1, Keep.FILES)
    reach(made, 2)
    return made


def reach(
    stream: Stream, target: int, keep: Keep = Keep.LOG, *, limits: LogLimits | None = None
) -> PullReport:
    """Pull; what is held then is the target, and what the files are is what the state says."""
    report = pull(
        stream.local,
        stream.source,
        target,
        base_dir=stream.base,
        threads=2,
        keep=keep,
        limits=limits,
    )
    assert held_contents(stream.local) == stream.at(target)
    assert report.version == held(stream).state.number == target
    assert contents_of(stream.local) == stream.at(held(stream).plain.number)
    return report


def held(stream: Stream) -> Holding:
    found = holding_in(stream.local)
    assert found is not None
    return found


def logged(stream: Stream) -> list[str]:
    """The versions of the log; no other file lies where they do."""
    names = [version.file for version in held(stream).versions]
    assert sorted(os.listdir(Reserved(stream.local).log)) == names
    return [name.removesuffix(".safetensors").lstrip("0") for name in names]


def files_of(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.iterdir()
        if path.is_file()
    }


def test_the_files_stay_and_say_what_they_are(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "gap")
    stream.add("overwrite", checksum_format="adler32", files=2)
    stream.add("gap", checksum_format="blake3")
    assert reach(stream, 0).mode is PullMode.SEED
    files, state = files_of(stream.local), Reserved(stream.local).state.read_bytes()
    for target, mode in ((1, "log"), (1, "noop"), (3, "log"), (4, "log")):
        report = reach(stream, target, limits=LogLimits(share=100.0))
        assert report.mode == mode
        assert files_of(stream.local) == files
        assert Reserved(stream.local).state.read_bytes() == state
    assert json.loads(state)["version"] == "000000"
    assert logged(stream) == ["1", "2", "3", "4"]
    assert held(stream).state.checkpoint_source_dir == str(stream.source)
    assert verify_local(stream.local).faults == ()


@pytest.mark.parametrize("again", [False, True])
def test_materialize_makes_plain_files(stream: Stream, again: bool) -> None:
    reach(stream, 3)
    shutil.rmtree(stream.source)
    shutil.rmtree(stream.base)
    report = materialize(stream.local, threads=1)
    assert (report.mode, report.start, report.versions) == (PullMode.FOLD, 1, (2, 3))
    assert report.written_bytes > 0
    if again:
        assert materialize(stream.local).mode is PullMode.NOOP
    assert contents_of(stream.local) == stream.at(3)
    assert held(stream).log is None
    assert held(stream).plain.number == 3
    assert os.listdir(Reserved(stream.local).log) == []
    assert verify_local(stream.local).versions == (3,)


def test_materialize_refuses_what_no_pull_keeps(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="no pull keeps a local checkpoint there"):
        materialize(stream.base)
    Reserved(stream.local).state.write_text("{")
    with pytest.raises(LocalDamaged, match="nothing that is to be trusted"):
        materialize(stream.local)
    assert reach(stream, 2).mode is PullMode.RESEED


@pytest.mark.parametrize(
    ("target", "mode", "versions"), [(2, "delta", (2,)), (3, "fold", (2, 3)), (1, "reseed", (1,))]
)
def test_a_pull_into_the_files_takes_the_log_along(
    stream: Stream, target: int, mode: str, versions: tuple[int, ...]
) -> None:
    report = reach(stream, target, Keep.FILES)
    assert (report.mode, report.versions) == (mode, versions)
    assert contents_of(stream.local) == stream.at(target)
    assert os.listdir(Reserved(stream.local).log) == []
    # And back again.
    if target < 3:
        assert reach(stream, target + 1).mode is PullMode.LOG


def test_a_copy_made_anew_as_it_was_before_the_log_has_none(tmp_path: Path) -> None:
    """With one thread its state is the same to the bit, and the log would count again."""
    stream = Stream(tmp_path, "xor", "gap")
    states = list[bytes]()
    for target, keep in ((1, Keep.FILES), (2, Keep.LOG), (1, Keep.LOG)):
        pull(stream.local, stream.source, target, base_dir=stream.base, threads=1, keep=keep)
        assert held_contents(stream.local) == stream.at(target)
        states.append(Reserved(stream.local).state.read_bytes())
    assert states[0] == states[1] == states[2]
    assert held(stream).log is None


@pytest.mark.parametrize("limits", [LogLimits(versions=1), LogLimits(share=0.0)])
def test_a_log_that_is_long_goes_into_the_files(stream: Stream, limits: LogLimits) -> None:
    report = reach(stream, 3, limits=limits)
    assert (report.mode, report.start, report.versions) == (PullMode.FOLD, 1, (2, 3))
    assert held(stream).log is None


def test_a_full_version_ends_the_log(stream: Stream) -> None:
    stream.add("full")
    assert reach(stream, 4).mode is PullMode.RESEED
    assert held(stream).log is None


def cut_version(stream: Stream) -> None:
    os.truncate(Reserved(stream.local).log / file_of(2), 40)


def flip_version(stream: Stream) -> None:
    """A value that the version after it does not write over."""
    path = Reserved(stream.local).log / file_of(2)
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])


def garble_version(stream: Stream) -> None:
    path = Reserved(stream.local).log / file_of(2)
    path.write_bytes(bytes(path.stat().st_size))


def no_version(stream: Stream) -> None:
    (Reserved(stream.local).log / file_of(2)).unlink()


def no_versions(stream: Stream) -> None:
    shutil.rmtree(Reserved(stream.local).log)


def linked_versions(stream: Stream) -> None:
    log = Reserved(stream.local).log
    log.rename(stream.local.parent / "moved")
    log.symlink_to(stream.local.parent / "moved")


def flip_file(stream: Stream) -> None:
    path = stream.local / FILE
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize("damage", [cut_version, garble_version, no_version, no_versions])
def test_a_damaged_log_is_seen_and_seeded_anew(
    stream: Stream, damage: Callable[[Stream], None]
) -> None:
    damage(stream)
    assert "is not the log that the last pull left" in str(survey_local(stream.local).trouble)
    (fault,) = verify_local(stream.local).faults
    assert fault.kind == "LocalDamaged"
    # Without a pull nothing is known that would mend it.
    with pytest.raises(LocalDamaged, match="is not the log") as caught:
        materialize(stream.local)
    assert "publish" not in str(caught.value)
    report = reach(stream, 2)
    assert report.mode is PullMode.RESEED
    assert held(stream).log is None


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("damage", [flip_version, flip_file])
def test_damaged_bytes_are_found_by_the_next_version(
    stream: Stream, damage: Callable[[Stream], None], keep: Keep
) -> None:
    damage(stream)
    faults = verify_local(stream.local).faults
    assert [fault.kind for fault in faults] == ["LocalDamaged"]
    assert reach(stream, 3, keep).mode is PullMode.RESEED
    assert verify_local(stream.local).faults == ()


def test_a_link_in_the_place_of_the_log_is_removed_and_not_followed(stream: Stream) -> None:
    linked_versions(stream)
    there = stream.local.parent / "moved"
    before = sorted(os.listdir(there))
    assert reach(stream, 3).mode is PullMode.RESEED
    assert sorted(os.listdir(there)) == before
    assert not Reserved(stream.local).log.is_symlink()


def test_what_a_killed_pull_left_is_removed(stream: Stream) -> None:
    log = Reserved(stream.local).log
    (log / file_of(3)).mkdir()
    (log / "000009.safetensors").symlink_to(stream.base / FILE)
    before = (stream.base / FILE).read_bytes()
    assert reach(stream, 2).mode is PullMode.NOOP
    assert logged(stream) == ["2"]
    assert reach(stream, 3).mode is PullMode.LOG
    assert (stream.base / FILE).read_bytes() == before


def test_readers_that_know_of_no_log_get_plain_files(stream: Stream) -> None:
    with reading(stream.local):
        assert contents_of(stream.local) == stream.at(2)
    reach(stream, 3)
    with reading(stream.local), reading(stream.local):
        assert contents_of(stream.local) == stream.at(3)
    with reading(stream.base):
        assert not Reserved(stream.base).home.exists()


def test_a_reader_that_knows_of_no_log_waits_for_who_reads_it(stream: Stream) -> None:
    with (
        exclusive(stream.local, timeout_s=0),
        pytest.raises(LocalBusy),
        reading(stream.local, timeout_s=0),
    ):
        raise AssertionError("two held it")
    assert held(stream).state.number == 2


def test_is_applied_knows_of_the_log(stream: Stream) -> None:
    places = Places(local=stream.local, source=stream.source, base=stream.base)
    assert [is_applied(places, target) for target in (1, 2, 3)] == [False, True, False]


def test_a_version_that_is_damaged_at_the_source_is_not_kept(stream: Stream) -> None:
    (path,) = directory_of(stream.source, 3).glob("*.safetensors")
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    before = Reserved(stream.local).log_marker.read_bytes()
    with pytest.raises(StreamError, match="version 3") as one:
        pull(stream.local, stream.source, 3, base_dir=stream.base, keep=Keep.LOG)
    assert (type(one.value).__name__, one.value.local_version) == ("DeltaDamaged", 2)
    assert Reserved(stream.local).log_marker.read_bytes() == before
    assert logged(stream) == ["2"]


def test_a_survey_tells_the_files_from_the_log(stream: Stream) -> None:
    survey = survey_local(stream.local)
    assert (survey.version, survey.plain_version, survey.log_versions) == (2, 1, (2,))
    assert survey.log_bytes == (Reserved(stream.local).log / file_of(2)).stat().st_size
    assert survey.trouble is None
    lengths = {name: len(value) for name, value in stream.at(2).items()}
    with OpenLog(held(stream), lengths, paths=Reserved(stream.local)) as log:
        assert repr(log) == "<OpenLog 1 versions, 4 tensors>"
        assert log.deltas("no such tensor") == ()
    with pytest.raises(LocalDamaged, match="cannot be read"):
        log.deltas("layers.0.weight")
    del lengths["layers.0.weight"]
    with pytest.raises(LocalDamaged, match=r"changes 'layers\.0\.weight', which is not there"):
        OpenLog(held(stream), lengths, paths=Reserved(stream.local))
