"""What ``verify_source`` and ``verify_local`` find, and what ``survey_source`` says."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hotswap.stream import (
    Fault,
    LocalDamaged,
    Progress,
    SourceNotReady,
    StreamError,
    VersionSurvey,
    directory_of,
    prune,
    publish_delta,
    pull,
    survey_local,
    survey_source,
    verify_local,
    verify_source,
)
from hotswap.stream.layout import INDEX
from hotswap.stream.lock import exclusive
from hotswap.stream.state import Reserved
from hotswap.stream.verified import Faults
from hotswap.weights.folder import OpenFile
from tests.unit.stream.crash_setups import add_aggregate
from tests.unit.stream.streams import Stream, edit_index, publish, write_checkpoint
from tests.unit.stream.test_sources import at_read

FILE = "model-00000-of-00001.safetensors"
LOCAL_FILE = "model-00001-of-00002.safetensors"


def flip(path: Path, at: int = -1) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def faults_of(stream: Stream) -> tuple[Fault, ...]:
    return verify_source(stream.source, base_dir=stream.base, threads=2).faults


def places(stream: Stream) -> list[tuple[str, str]]:
    return [(fault.where, fault.kind) for fault in faults_of(stream)]


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path, "xor", "overwrite", "full", "gap", "overwrite")


def test_a_whole_stream_has_no_fault(stream: Stream) -> None:
    told = list[Progress]()
    found = verify_source(stream.source, base_dir=stream.base, progress=told.append)
    assert (found.faults, found.versions, found.checks) == ((), (1, 2, 3, 4, 5), 4 * 4)
    assert found.checked_bytes == 4 * sum(map(len, stream.at(0).values()))
    assert str(found.note) == "full versions have no checksums (3): headers and sizes"
    assert found.retryable
    assert list(dict.fromkeys(one.phase for one in told)) == ["versions on 0", "versions on 3"]
    assert told[-1].done_bytes == told[-1].total_bytes > 0
    assert repr(Faults()) == "<Faults 0 in 0 checks>"


def test_each_fault_is_found_and_the_others_too(stream: Stream) -> None:
    flip(directory_of(stream.source, 1) / FILE)
    os.truncate(directory_of(stream.source, 4) / FILE, 100)
    found = faults_of(stream)
    # The tensor whose delta is damaged goes no further; the others do.
    assert [(one.where, one.kind, one.tensor is None) for one in found] == [
        ("weight_v000001", "DeltaDamaged", False),
        ("weight_v000004", "SourceNotReady", True),
        ("weight_v000005", "VersionMissing", True),
    ]
    assert str(found[0]).startswith("weight_v000001: DeltaDamaged: version 1, tensor")
    assert "builds on version 4, which could not be checked" in str(found[2])


def test_a_version_that_is_being_published_is_late_and_not_wrong(stream: Stream) -> None:
    directory_of(stream.source, 6).mkdir()
    found = verify_source(stream.source, base_dir=stream.base)
    assert (found.versions, found.retryable) == ((1, 2, 3, 4, 5), True)
    assert str(found.note) == "full versions have no checksums (3): headers and sizes"
    [fault] = found.faults
    assert (fault.where, fault.kind) == ("weight_v000006", "SourceNotReady")
    assert "version 6 is not published (yet)" in fault.message
    assert survey_source(stream.source, density=False).versions[-1].trouble == fault.message


def test_what_builds_on_a_full_version_that_is_damaged(stream: Stream) -> None:
    shutil.rmtree(directory_of(stream.source, 3))
    directory_of(stream.source, 3).mkdir()
    assert places(stream) == [
        ("weight_v000003", "SourceNotReady"),
        ("weight_v000004", "VersionMissing"),
        ("weight_v000005", "VersionMissing"),
    ]
    assert "builds on version 3, which could not be checked" in faults_of(stream)[1].message


def test_what_a_header_says_of_another_length_is_found(stream: Stream) -> None:
    edit_index(directory_of(stream.source, 2), checksum_format="md5")
    edit_index(directory_of(stream.source, 5), base_version="000002")
    assert places(stream) == [
        ("weight_v000002", "UnknownEncoding"),
        ("weight_v000005", "VersionMissing"),
    ]


def test_versions_that_branch_are_all_checked(stream: Stream) -> None:
    new = stream.tensors[2]
    old = stream.tensors[1]
    publish(stream.source, 6, old, new)
    edit_index(directory_of(stream.source, 6), base_version="000001")
    found = verify_source(stream.source, base_dir=stream.base)
    assert (found.faults, found.checks) == ((), 5 * 4)
    flip(directory_of(stream.source, 6) / FILE)
    assert places(stream) == [("weight_v000006", "DeltaDamaged")]


def test_a_wrong_checksum_is_a_fault(stream: Stream) -> None:
    path = directory_of(stream.source, 5) / FILE
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header["__metadata__"]
    metadata["layers.0.weight"] = "0" * 32
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    [fault] = faults_of(stream)
    assert (fault.tensor, fault.retryable) == ("layers.0.weight", False)
    assert "gives bytes with the checksum" in fault.message


def test_gaps_the_base_and_an_empty_source(stream: Stream, tmp_path: Path) -> None:
    found = verify_source(stream.source)
    assert found.versions == (3, 4, 5)
    assert [fault.where for fault in found.faults] == ["weight_v000001", "weight_v000002"]
    assert "which was not given" in found.faults[0].message
    shutil.rmtree(directory_of(stream.source, 1))
    [fault] = faults_of(stream)
    assert "builds on version 1, which is missing" in fault.message
    os.truncate(stream.base / LOCAL_FILE, 10)
    assert ("base", "SourceNotReady") in places(stream)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceNotReady, match="holds no published version"):
        verify_source(tmp_path / "empty")


def test_the_aggregate_is_checked_or_skipped(stream: Stream) -> None:
    aggregate = add_aggregate(stream, 2)
    found = verify_source(stream.source, base_dir=stream.base)
    assert (found.faults, found.checks, found.versions) == ((), 5 * 4, (1, 2, 3, 4, 5))
    flip(aggregate / "model-00001-of-00002.safetensors")
    assert places(stream) == [("aggregate", "DeltaDamaged")]
    edit_index(aggregate, base_version="000001")
    found = verify_source(stream.source, base_dir=stream.base)
    assert found.faults == ()
    assert "the aggregate is skipped" in str(found.note)


def test_a_blob_longer_than_any_compressor_makes_it(stream: Stream) -> None:
    old, new = np.zeros(2, np.uint8), np.ones(2, np.uint8)
    directory = directory_of(stream.source, 6)
    long = np.frombuffer(os.urandom(9000), np.uint8)
    publish_delta(stream.source, 6, [[("layers.0.weight", np.zeros(9000, np.uint8), long)]])
    stream.base.rename(stream.base.with_name("other"))
    write_checkpoint(stream.base, {"layers.0.weight": old, "more": new})
    edit_index(directory, base_version="000000")
    assert ("weight_v000006", "VersionMalformed") in places(stream)


def test_a_base_that_cannot_be_read_is_a_fault(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(file: OpenFile, offset: int, *outs: memoryview) -> None:
        if file.name == LOCAL_FILE and sum(map(len, outs)) > 2500:
            raise OSError(5, "Input/output error")
        read_at(file, offset, *outs)

    read_at = OpenFile.read_at
    monkeypatch.setattr(OpenFile, "read_at", failing)
    assert {fault.where for fault in faults_of(stream)} == {"base"}


def test_density_is_the_share_of_bytes_that_change(tmp_path: Path) -> None:
    stream = Stream(tmp_path, length=1000, count=2)
    old = stream.tensors[0]
    size = sum(map(len, old.values()))
    counts = {"xor": 10, "overwrite": 300, "gap": 20}
    for version, (encoding, count) in enumerate(counts.items(), 1):
        new = {name: value.copy() for name, value in stream.tensors[-1].items()}
        first = min(new)
        new[first][:count] ^= 255
        publish(stream.source, version, stream.tensors[-1], new, encoding=encoding)
        stream.tensors.append(new)
    seen = survey_source(stream.source, base_dir=stream.base).versions
    assert [one.changed_bytes for one in seen] == list(counts.values())
    assert [one.density for one in seen] == [count / size for count in counts.values()]
    assert [one.density for one in survey_source(stream.source).versions] == [None] * 3
    stream.add("full")
    assert survey_source(stream.source).versions[0].density == 10 / size
    assert survey_source(stream.source, density=False).versions[0].density is None


def whole(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def test_a_survey_has_sizes_and_chains(stream: Stream) -> None:
    add_aggregate(stream, 2)
    found = survey_source(stream.source, base_dir=stream.base)
    by_version = {one.version: one for one in found.versions}
    assert by_version[2].chain == (0, 1, 2)
    assert by_version[3].chain == (3,)
    assert by_version[5].chain == (3, 4, 5)
    assert by_version[5].size_bytes == whole(directory_of(stream.source, 5))
    assert by_version[1].checksum_format == "xxh3-128"
    assert found.aggregate is not None
    assert (found.aggregate.version, found.aggregate.chain, found.aggregate.trouble) == (
        2,
        (0, 2),
        None,
    )


def lost_index(stream: Stream) -> None:
    (stream.source / "aggregate" / INDEX).unlink()


def no_json(stream: Stream) -> None:
    (stream.source / "aggregate" / INDEX).write_text("{")


def torn(stream: Stream) -> None:
    os.truncate(stream.source / "aggregate" / "model-00001-of-00002.safetensors", 99)


@pytest.mark.parametrize("fault", [lost_index, no_json, torn])
def test_trouble_with_the_aggregate(stream: Stream, fault: Callable[[Stream], None]) -> None:
    add_aggregate(stream, 2)
    fault(stream)
    found = survey_source(stream.source, base_dir=stream.base)
    assert found.aggregate is not None
    assert found.aggregate.trouble
    assert [one.trouble for one in found.versions] == [None] * 5


def test_trouble_with_a_version_is_its_own(stream: Stream) -> None:
    (directory_of(stream.source, 1) / INDEX).write_text("{")
    flip(directory_of(stream.source, 4) / FILE)
    seen = {one.version: one for one in survey_source(stream.source, base_dir=stream.base).versions}
    assert "JSON" in str(seen[1].trouble)
    assert (seen[1].kind, seen[1].chain, seen[2].missing) == (None, (), 1)
    assert "version 4, tensor" in str(seen[4].trouble)
    assert seen[5] == VersionSurvey(
        version=5,
        kind="overwrite",
        base_version=4,
        checksum_format="xxh3-128",
        tensors=4,
        files=1,
        size_bytes=whole(directory_of(stream.source, 5)),
        changed_bytes=seen[5].changed_bytes,
        density=seen[5].density,
        chain=(3, 4, 5),
    )


def test_a_local_checkpoint_against_what_the_pull_left(stream: Stream) -> None:
    with pytest.raises(LocalDamaged, match="nothing says which bytes it should hold"):
        verify_local(stream.base)
    pull(stream.local, stream.source, 2, base_dir=stream.base)
    found = verify_local(stream.local, threads=1)
    assert (found.faults, found.versions, found.checks) == ((), (2,), 4)
    flip(stream.local / LOCAL_FILE)
    [fault] = verify_local(stream.local).faults
    assert (fault.kind, fault.tensor is None) == ("LocalDamaged", False)
    index = json.loads((stream.local / INDEX).read_text())
    del index["weight_map"]["layers.1.weight"]
    (stream.local / INDEX).write_text(json.dumps(index))
    gone = [one for one in verify_local(stream.local).faults if "is gone" in one.message]
    assert [one.tensor for one in gone] == ["layers.1.weight"]
    assert "1 tensors are not those" in str(survey_local(stream.local).trouble)
    os.truncate(stream.local / LOCAL_FILE, 9)
    # The index, which was changed above, and the file.
    assert [one.tensor for one in verify_local(stream.local).faults] == [None, None]
    assert survey_local(stream.local).trouble


def test_a_local_checkpoint_that_cannot_be_read(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(stream.local, stream.source, 2, base_dir=stream.base)
    read_at = OpenFile.read_at

    def failing(file: OpenFile, offset: int, *outs: memoryview) -> None:
        if sum(map(len, outs)) > 2500:
            raise OSError(5, "Input/output error")
        read_at(file, offset, *outs)

    monkeypatch.setattr(OpenFile, "read_at", failing)
    found = verify_local(stream.local)
    assert (len(found.faults), found.checks) == (4, 0)


def test_a_local_checkpoint_is_not_verified_while_it_is_written(stream: Stream) -> None:
    pull(stream.local, stream.source, 2, base_dir=stream.base)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with exclusive(stream.local, timeout_s=10):
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        held.wait()
        with pytest.raises(StreamError, match="was held by another pull"):
            verify_local(stream.local, lock_timeout_s=0)
        assert survey_local(stream.local).version == 2
    finally:
        over.set()
        thread.join()


def test_what_a_pull_is_writing_is_not_called_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(tmp_path, "xor")
    pull(stream.local, stream.source, 1, base_dir=stream.base)
    module = importlib.import_module("hotswap.stream.survey_local")
    monkeypatch.setattr(module, "_WAIT_S", 0.0)
    with exclusive(stream.local, timeout_s=10):
        journal = Reserved(stream.local).journal
        journal.write_bytes(b"not yet whole")
        trouble = survey_local(stream.local).trouble
    assert str(trouble).startswith("a pull is at work here, or holds it: look again")
    assert str(survey_local(stream.local).trouble).startswith("a pull was cut short")
    journal.unlink()
    assert survey_local(stream.local).trouble is None


@pytest.mark.parametrize("encoding", ["xor", "overwrite", "gap", "full"])
@pytest.mark.parametrize("base_is_known", [True, False])
def test_a_survey_beside_a_prune_tells_of_what_stays(
    encoding: str, base_is_known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions that go while it looks are neither faults nor what the others are measured by."""
    acted, number = True, 0
    while acted:
        number += 1
        acts = list[int]()
        stream = Stream(tmp_path / str(number), "xor", encoding, "full", "xor")

        def go(source: Path = stream.source, acts: list[int] = acts) -> None:
            acts.append(1)
            prune(source, keep=1)

        path = max(directory_of(stream.source, 2).glob("*.safetensors"))
        with monkeypatch.context() as patched:
            at_read(patched, path, number, go)
            seen = survey_source(stream.source, base_dir=stream.base if base_is_known else None)
        troubles = [(one.version, one.trouble) for one in seen.versions if one.trouble]
        assert troubles == []
        assert {3, 4} <= {one.version for one in seen.versions}
        acted = bool(acts)
    assert number > 2
