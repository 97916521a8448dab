"""What somebody may have put where a pull reads and writes: it harms nothing elsewhere.

A directory below a local root, and a source, are also written by others.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from hotswap.stream import PullReport, StreamError, directory_of, pull
from hotswap.stream.disk import LocalDisk
from hotswap.stream.errors import LocalDamaged, OutsideRoots
from hotswap.stream.journal import JournalReader, JournalWriter, Outcome
from hotswap.stream.lock import reading
from hotswap.stream.state import Reserved, State
from tests.unit.stream.crash_setups import add_aggregate
from tests.unit.stream.streams import Stream, changed, contents_of, publish, write_checkpoint


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path, "xor", "xor")


def reach(stream: Stream, target: int) -> PullReport:
    report = pull(stream.local, stream.source, target, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(target)
    return report


@pytest.mark.parametrize("name", [".weight_sync", ".weight_sync/incoming"])
def test_links_lead_nowhere(stream: Stream, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside" / "incoming").mkdir(parents=True)
    files = [tmp_path / "outside" / "precious", tmp_path / "outside" / "incoming" / "precious"]
    for file in files:
        file.write_text("kept")
    link = stream.local / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "outside")
    with pytest.raises(OutsideRoots, match=r"is a link.*remove it"):
        reach(stream, 1)
    assert sorted(f for f in (tmp_path / "outside").rglob("*") if f.is_file()) == sorted(files)


def test_a_state_that_claims_files_elsewhere_is_not_trusted(stream: Stream, tmp_path: Path) -> None:
    reach(stream, 1)
    (tmp_path / "precious").write_text("kept")
    path = Reserved(stream.local).state
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "files": [*state["files"], "../precious"]}))
    assert reach(stream, 2).mode == "reseed"
    assert (tmp_path / "precious").read_text() == "kept"


@pytest.mark.parametrize("kind", ["files", "moves", "removes"])
def test_a_journal_about_files_elsewhere_is_none(tmp_path: Path, kind: str) -> None:
    journal = JournalWriter(LocalDisk(), tmp_path / "journal")
    state = State(version="000001")
    journal.commit(Outcome(before=None, state=state, **{kind: ("../precious",)}))
    journal.close()
    with pytest.raises(LocalDamaged, match="not the journal"):
        JournalReader(tmp_path / "journal")


@pytest.mark.parametrize("start", ["", '{"version": "000001", "x": '])
def test_a_state_that_is_nested_absurdly_is_none(stream: Stream, start: str) -> None:
    reach(stream, 1)
    Reserved(stream.local).state.write_text(start + "[" * 200_000)
    assert reach(stream, 2).mode == "reseed"


@pytest.mark.parametrize("name", ["state.json", "lock"])
def test_a_fifo_keeps_nobody_waiting(stream: Stream, name: str) -> None:
    Reserved(stream.local).home.mkdir(parents=True)
    os.mkfifo(Reserved(stream.local).home / name)
    reach(stream, 1)
    with reading(stream.local, timeout_s=5.0):
        assert contents_of(stream.local) == stream.at(1)


def test_a_fifo_is_no_journal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal")
    with pytest.raises(LocalDamaged, match="not the journal"):
        JournalReader(tmp_path / "journal")


def test_a_directory_in_a_files_place_is_seen_before_anything_changes(stream: Stream) -> None:
    reach(stream, 1)
    stream.add("full")
    (stream.local / "old.bin").mkdir()
    with pytest.raises(StreamError, match=r"old\.bin: is a directory") as caught:
        reach(stream, 3)
    assert caught.value.local_version == 1
    assert contents_of(stream.local) == stream.at(1)
    (stream.local / "old.bin").rmdir()
    reach(stream, 3)


def _latin(directory: Path, suffix: bytes) -> Path:
    path = os.fsencode(directory) + b"/caf\xe9" + suffix
    with open(path, "wb") as file:
        file.write(b"x")
    return Path(os.fsdecode(path))


def test_what_is_not_named_in_utf8_is_not_copied(stream: Stream) -> None:
    _latin(stream.base, b".txt")
    assert reach(stream, 1).mode == "seed"
    assert reach(stream, 1).mode == "noop"
    assert all(name.isascii() for name in os.listdir(stream.local))


def test_weights_not_named_in_utf8_are_told(stream: Stream) -> None:
    shutil.rmtree(stream.base)
    write_checkpoint(stream.base, stream.tensors[0], files=1)
    own = stream.base / "model.safetensors"
    own.rename(_latin(stream.base, b".safetensors"))
    with pytest.raises(StreamError, match="UTF-8; rename the file"):
        reach(stream, 1)


def test_a_leftover_not_named_in_utf8_is_told(stream: Stream) -> None:
    reach(stream, 1)
    stream.add("full")
    leftover = _latin(stream.local, b".bin")
    with pytest.raises(StreamError, match="UTF-8; remove it"):
        reach(stream, 3)
    leftover.unlink()
    reach(stream, 3)


def _stamped(file: Path, stamp: str) -> None:
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"]["version"] = stamp
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


@pytest.mark.parametrize(
    "stamp", ["2" * 5000, "٢", "", "-2", "2.0"], ids=["long", "arabic", "empty", "negative", "real"]
)
def test_a_stamp_that_is_no_version_is_a_torn_aggregate(stream: Stream, stamp: str) -> None:
    for file in add_aggregate(stream, 2).glob("*.safetensors"):
        _stamped(file, stamp)
    assert not reach(stream, 2).aggregate


def _of_another_run(stream: Stream) -> None:
    """An aggregate to version 2 that an earlier run left in the same source."""
    ours = stream.tensors
    stream.tensors = [ours[0], ours[1], changed(changed(ours[0], 901), 902)]
    add_aggregate(stream, 2)
    stream.tensors = ours


def test_an_aggregate_of_another_run_is_skipped(stream: Stream) -> None:
    _of_another_run(stream)
    assert not reach(stream, 2).aggregate


def test_an_aggregate_of_another_run_is_skipped_where_the_version_is_full(stream: Stream) -> None:
    _of_another_run(stream)
    shutil.rmtree(directory_of(stream.source, 2))
    write_checkpoint(directory_of(stream.source, 2), stream.tensors[2], files=1)
    assert not reach(stream, 2).aggregate


def test_an_aggregate_with_checksums_of_another_kind_is_not_compared(stream: Stream) -> None:
    add_aggregate(stream, 2)
    shutil.rmtree(directory_of(stream.source, 2))
    before, after = stream.tensors[1:]
    publish(stream.source, 2, before, after, checksum_format="adler32")
    assert not reach(stream, 2).aggregate


def _reverted(stream: Stream) -> None:
    """Version 3 gives one tensor the base's bytes back, and an aggregate reaches it."""
    before = stream.tensors[2]
    name = min(before)
    stream.tensors.append({**before, name: stream.tensors[0][name]})
    publish(stream.source, 3, before, stream.tensors[3])
    add_aggregate(stream, 3)


def test_an_aggregate_leaves_out_what_became_the_base_again(stream: Stream) -> None:
    _reverted(stream)
    shutil.rmtree(directory_of(stream.source, 1))
    assert reach(stream, 3).aggregate


def test_an_aggregate_that_leaves_out_what_changed_is_of_another_run(stream: Stream) -> None:
    ours = stream.tensors
    name = min(ours[0])
    stream.tensors = [ours[0], ours[1], {**ours[2], name: ours[0][name]}]
    add_aggregate(stream, 2)
    stream.tensors = ours
    assert not reach(stream, 2).aggregate


@pytest.mark.parametrize("target", [10**18, 10**5000], ids=["19", "5001"])
def test_a_version_that_no_index_can_spell_is_refused(stream: Stream, target: int) -> None:
    with pytest.raises(StreamError, match=r"wanted at most 9{18},"):
        pull(stream.local, stream.source, target, base_dir=stream.base)
