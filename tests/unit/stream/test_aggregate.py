"""``aggregate/`` saves work for who joins late, and is skipped when it is not in one state."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from hotswap.stream import (
    PullReport,
    VersionMissing,
    directory_of,
    pull,
    survey_source,
    verify_source,
)
from hotswap.stream.layout import INDEX
from tests.unit.stream.crash_setups import add_aggregate
from tests.unit.stream.streams import Stream, contents_of, edit_index


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Stream(tmp_path, "xor", "overwrite", "xor", "xor")
    add_aggregate(made, 3)
    return made


def reach(stream: Stream, target: int) -> PullReport:
    report = pull(stream.local, stream.source, target, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(target)
    return report


def test_a_late_joiner_takes_it_and_the_versions_after_it(stream: Stream) -> None:
    for version in (1, 2):
        shutil.rmtree(directory_of(stream.source, version))
    report = reach(stream, 4)
    assert (report.aggregate, report.start, report.versions) == (True, 3, (4,))


def test_it_reaches_its_own_version(stream: Stream) -> None:
    report = reach(stream, 3)
    assert (report.aggregate, report.versions) == (True, ())
    assert reach(stream, 3).mode == "noop"
    assert reach(stream, 4).mode == "delta"


def test_it_is_not_asked_for_before_it_is_listed(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a mount would remember that it is not there, long after it was published."""
    listdir, asked = os.listdir, list[str]()

    def hiding(path: str | Path) -> list[str]:
        return [name for name in listdir(path) if name != "aggregate"]

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", hiding)
        for name in ("stat", "lstat", "open"):
            patched.setattr(os, name, noting(getattr(os, name), asked))
        assert not reach(stream, 4).aggregate
        survey_source(stream.source)
        verify_source(stream.source, base_dir=stream.base)
    assert asked
    assert [path for path in asked if "aggregate" in path] == []
    shutil.rmtree(stream.local)
    assert reach(stream, 4).aggregate


def noting(call: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    """``call``, whose paths are put into ``asked``."""

    def noted(path: Any, *of: Any, **how: Any) -> Any:
        asked.append(str(path))
        return call(path, *of, **how)

    return noted


def test_who_is_under_way_does_without_it(stream: Stream) -> None:
    reach(stream, 1)
    assert not reach(stream, 4).aggregate


@pytest.mark.parametrize("target", [0, 1, 2])
def test_one_that_leads_past_the_target_is_of_no_use(stream: Stream, target: int) -> None:
    assert not reach(stream, target).aggregate


def test_a_full_version_after_it_is_nearer(stream: Stream) -> None:
    stream.add("full")
    stream.add("xor")
    report = reach(stream, 6)
    assert (report.aggregate, report.start) == (False, 5)


def torn_stamp(stream: Stream) -> None:
    whole = {path.name: path.read_bytes() for path in (stream.source / "aggregate").iterdir()}
    add_aggregate(stream, 3, stamp=2)
    first = stream.source / "aggregate" / "model-00000-of-00002.safetensors"
    first.write_bytes(whole[first.name])


def unstamped(stream: Stream) -> None:
    directory = stream.source / "aggregate"
    for path in directory.glob("*.safetensors"):
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        del header["__metadata__"]["version"]
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def missing_file(stream: Stream) -> None:
    (stream.source / "aggregate" / "model-00001-of-00002.safetensors").unlink()


def cut_file(stream: Stream) -> None:
    path = stream.source / "aggregate" / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def not_on_the_base(stream: Stream) -> None:
    edit_index(stream.source / "aggregate", base_version="000001")


def another_encoding(stream: Stream) -> None:
    edit_index(stream.source / "aggregate", delta_encoding="gzip")


def no_index(stream: Stream) -> None:
    (stream.source / "aggregate" / INDEX).unlink()


@pytest.mark.parametrize(
    "fault",
    [
        torn_stamp,
        unstamped,
        missing_file,
        cut_file,
        not_on_the_base,
        another_encoding,
        no_index,
    ],
)
def test_a_torn_aggregate_is_skipped(stream: Stream, fault: object) -> None:
    assert callable(fault)
    fault(stream)
    report = reach(stream, 4)
    assert (report.aggregate, report.versions) == (False, (1, 2, 3, 4))
    shutil.rmtree(stream.local)
    shutil.rmtree(directory_of(stream.source, 2))
    with pytest.raises(VersionMissing, match="version 2 is missing"):
        pull(stream.local, stream.source, 4, base_dir=stream.base)


def test_one_with_other_bytes_is_skipped(stream: Stream) -> None:
    kept, stream.tensors[3] = stream.tensors[3], stream.tensors[2]
    add_aggregate(stream, 3)
    stream.tensors[3] = kept
    path = stream.source / "aggregate" / "model-00000-of-00002.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for name, value in kept.items():
        if name in header:
            header["__metadata__"][name] = xxhash.xxh3_128_hexdigest(value.data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    assert not reach(stream, 3).aggregate
