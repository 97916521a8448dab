"""The redo journal: what is written comes back, and nothing else is taken for it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.stream import LocalDamaged, PullMode, pull, survey_local
from hotswap.stream.disk import LocalDisk
from hotswap.stream.encodings import Bytes
from hotswap.stream.journal import (
    CHUNK_BYTES,
    JournalReader,
    JournalWriter,
    Outcome,
    chunk_room,
)
from hotswap.stream.state import Reserved, State
from hotswap.stream.words import WORD_BYTES, different_words
from tests.unit.stream.crash_setups import pull_now
from tests.unit.stream.crashes import Scenario
from tests.unit.stream.faulty_disk import ForgetfulDisk, write_left
from tests.unit.stream.streams import Stream, changed, contents_of, made

OUTCOME = Outcome(before=None, state=State(version="000001"), files=("a", "b"))


def written(directory: Path, *changes: tuple[int, int, bytes, bytes]) -> JournalReader:
    writer = JournalWriter(LocalDisk(), directory / "journal")
    for file, offset, old, new in changes:
        note(writer, file, offset, old, new)
    writer.commit(OUTCOME)
    writer.close()
    return JournalReader(directory / "journal")


def note(writer: JournalWriter, file: int, offset: int, old: bytes, new: bytes) -> None:
    words = different_words(np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8))
    writer.change(file, offset, padded(new), span=len(new), words=words)


def padded(span: bytes) -> Bytes:
    """``span`` up to a whole word; what is past it is of no account."""
    return np.frombuffer(span + b"?" * (-len(span) % WORD_BYTES), np.uint8).copy()


def read_again(path: Path) -> None:
    with closing(JournalReader(path)) as journal:
        journal.check()


def patched(journal: JournalReader, contents: list[bytearray]) -> None:
    for record in journal.records():
        span = slice(record.offset, record.offset + record.span)
        room = padded(bytes(contents[record.file][span]))
        journal.patch(record, room)
        contents[record.file][span] = room[: record.span].tobytes()


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=70), st.data())
def test_records_turn_the_old_bytes_into_the_new_any_number_of_times(
    tmp_path_factory: pytest.TempPathFactory, old: bytes, data: st.DataObject
) -> None:
    new = bytearray(old)
    for at in data.draw(st.sets(st.integers(0, max(len(old) - 1, 0)))):
        if old:
            new[at] = data.draw(st.integers(0, 255))
    contents = [bytearray(), bytearray(b"abc" + old + b"xyz")]
    with closing(written(tmp_path_factory.mktemp("journal"), (1, 3, old, bytes(new)))) as journal:
        for _ in range(2):
            patched(journal, contents)
            assert contents == [b"", b"abc" + new + b"xyz"]
        journal.check()
        assert journal.outcome == OUTCOME
        assert (list(journal.records()) == []) == (new == old)


def test_few_changes_take_little_room(tmp_path: Path) -> None:
    old = bytes(CHUNK_BYTES)
    new = bytearray(old)
    new[5], new[-1] = 1, 1
    journal = written(tmp_path, (0, 0, old, bytes(new)))
    assert (tmp_path / "journal").stat().st_size < 500
    assert [record.span for record in journal.records()] == [CHUNK_BYTES]
    journal.close()


def test_every_cut_and_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    written(tmp_path, (0, 0, bytes(40), bytes(16) + bytes(range(8)) + bytes(16))).close()
    path = tmp_path / "journal"
    whole = path.read_bytes()
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        with pytest.raises(LocalDamaged, match="not the journal that a pull left"):
            read_again(path)
    for at in range(0, len(whole), 2):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with pytest.raises(LocalDamaged, match="not the journal that a pull left"):
            read_again(path)


def by_hand(path: Path, outcome: object, *records: tuple[int, int, int, int, bytes]) -> Path:
    """A journal as its page says: each record is (kind, file, offset, span, payload)."""
    content = b"hotswap-journal2"
    for kind, file, offset, span, payload in records:
        head = struct.pack("<IIQII", kind, file, offset, span, len(payload))
        content += head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head + payload)) + payload
    text = json.dumps(outcome).encode()
    content += text + struct.pack("<QQ8s", len(text), xxhash.xxh3_64_intdigest(text), b"hsw-end1")
    path.write_bytes(content)
    return path


SAID = {"before": None, "state": {"version": "000001"}, "files": ["a"]}


def test_one_made_by_hand_is_read(tmp_path: Path) -> None:
    words = bytes(range(8)) + struct.pack("<I", 1)
    path = by_hand(tmp_path / "journal", SAID, (0, 0, 3, 2, b"xy"), (1, 0, 0, 20, words))
    contents = [bytearray(20)]
    with closing(JournalReader(path)) as journal:
        patched(journal, contents)
    assert contents == [bytes(3) + b"xy" + bytes(3) + bytes(range(8)) + bytes(4)]


@pytest.mark.parametrize(
    "outcome",
    [
        {},
        [],
        None,
        7,
        {"before": None, "state": {"version": 7}},
        {"before": None, "state": {"version": "seven"}},
        {"before": None, "state": {"version": "000001"}, "files": "a"},
        {"before": 1, "state": {"version": "000001"}},
        {"state": {"version": "000001"}},
        {"before": None, "after": {"version": "000001"}},
    ],
    ids=str,
)
def test_one_of_another_schema_is_no_journal_and_the_copy_is_seeded_again(
    tmp_path: Path, outcome: object
) -> None:
    stream = Stream(tmp_path, "xor")
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    path = by_hand(Reserved(stream.local).journal, outcome)
    with pytest.raises(LocalDamaged, match="not the journal that a pull left"):
        JournalReader(path)
    assert survey_local(stream.local).unfinished is None
    assert pull(stream.local, stream.source, 1, base_dir=stream.base).mode is PullMode.RESEED
    assert contents_of(stream.local) == stream.at(1)


@pytest.mark.parametrize(
    "record",
    [
        (2, 0, 0, 2, b"xy"),
        (0, 1, 0, 2, b"xy"),
        (0, 0, 0, 3, b"xy"),
        (0, 0, 0, 1, b"xy"),
        (1, 0, 0, 16, b"xy"),
        (1, 0, 0, CHUNK_BYTES + 1, b""),
        (0, 0, 2**63, 2, b"xy"),
        (0, 0, 2**64 - 1, 2, b"xy"),
        (1, 0, 0, 16, bytes(8) + struct.pack("<I", 2)),
        (1, 0, 0, 16, bytes(8) + struct.pack("<I", 2**32 - 1)),
    ],
    ids=str,
)
def test_a_record_that_no_pull_writes_changes_nothing(
    tmp_path: Path, record: tuple[int, int, int, int, bytes]
) -> None:
    path = by_hand(tmp_path / "journal", SAID, record)
    contents = [bytearray(32)]
    with (
        closing(JournalReader(path)) as journal,
        pytest.raises(LocalDamaged, match="not the journal that a pull left"),
    ):
        patched(journal, contents)
    assert contents == [bytes(32)]


def test_an_uncommitted_journal_leaves_nothing(tmp_path: Path) -> None:
    writer = JournalWriter(LocalDisk(), tmp_path / "journal")
    note(writer, 0, 0, bytes(8), bytes(7) + b"x")
    assert "journal" in repr(writer)
    writer.close()
    writer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def half_written(tmp_path: Path) -> Scenario:
    """A pull that ended after its journal had become durable."""
    scenario = Scenario("fold", tmp_path)
    scenario.rewind()
    disk = ForgetfulDisk(scenario.local)
    pull_now(scenario.stream, scenario.target, disk=disk)
    left = next(one for one in disk.left if ".weight_sync/journal" in one)
    scenario.rewind()
    write_left(scenario.local, left)
    return scenario


def test_a_pull_that_was_cut_short_is_finished_without_the_source(half_written: Scenario) -> None:
    stream = half_written.stream
    stream.source.rename(stream.source.with_name("gone"))
    report = pull(stream.local, stream.source, 3, base_dir=stream.base)
    assert report.mode is PullMode.RECOVERED
    half_written.check_bytes(3)


def test_a_journal_of_no_use_makes_the_copy_be_seeded_again(half_written: Scenario) -> None:
    journal = Reserved(half_written.local).journal
    journal.write_bytes(journal.read_bytes()[:-1])
    stream = half_written.stream
    assert pull(stream.local, stream.source, 3, base_dir=stream.base).mode is PullMode.RESEED
    half_written.check_bytes(3)


def test_a_journal_of_another_state_is_not_carried_out(half_written: Scenario) -> None:
    stream = half_written.stream
    Reserved(stream.local).state.write_text('{"version": "000002"}')
    assert pull(stream.local, stream.source, 3, base_dir=stream.base).mode is PullMode.RESEED
    half_written.check_bytes(3)


@pytest.mark.parametrize("left", [None, 10])
def test_a_file_that_a_journal_needs_is_gone_or_short(
    half_written: Scenario, left: int | None
) -> None:
    stream = half_written.stream
    path = stream.local / "model-00001-of-00002.safetensors"
    content = path.read_bytes()
    path.unlink()
    if left is not None:
        path.write_bytes(content[:left])
    assert pull(stream.local, stream.source, 3, base_dir=stream.base).mode is PullMode.RESEED
    half_written.check_bytes(3)


def to_a_link(path: Path) -> None:
    path.rename(path.with_name("kept"))
    path.symlink_to("kept")


def to_another_name(path: Path) -> None:
    path.with_name("kept").hardlink_to(path)


def to_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("turn", [to_a_link, to_another_name, to_a_pipe])
def test_a_file_that_a_journal_needs_is_none_of_its_own_any_more(
    half_written: Scenario, turn: Callable[[Path], None]
) -> None:
    stream = half_written.stream
    path = stream.local / "model-00001-of-00002.safetensors"
    content = path.read_bytes()
    turn(path)
    assert pull(stream.local, stream.source, 3, base_dir=stream.base).mode is PullMode.RESEED
    half_written.check_bytes(3)
    kept = path.with_name("kept")
    assert not kept.exists() or kept.read_bytes() == content


def test_a_large_tensor_is_written_in_several_records(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", length=CHUNK_BYTES + 100, count=1)
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    pull(stream.local, stream.source, 1, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(1)
    old = made(length=CHUNK_BYTES + 100, count=1)
    assert changed(old, 1)["layers.0.weight"].tobytes() == stream.at(1)["layers.0.weight"]


@pytest.mark.parametrize("at", [0, 1, 8, 17, 2047, 2048, 4095, 2**40 + 4080])
def test_a_piece_begins_far_from_where_it_lies_in_its_page(at: int) -> None:
    room = chunk_room(CHUNK_BYTES - 3, at=at)
    assert len(room) == CHUNK_BYTES
    assert not room[-3:].any()
    assert room.ctypes.data % 8 == 0
    assert 1024 <= (room.ctypes.data - at) % 4096 <= 3072
