"""Indexes that are not what they ought to be, pulled; the local copy stays as it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotswap.stream import (
    DeltaDamaged,
    OutOfOrder,
    SourceNotReady,
    StreamError,
    UnknownEncoding,
    VersionMalformed,
    VersionMissing,
    directory_of,
    published_versions,
    pull,
)
from hotswap.stream.layout import INDEX, read_index
from hotswap.weights.folder import Folder
from tests.unit.stream.streams import Stream, contents_of, edit_index, refusal_of


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Stream(tmp_path, "xor", "overwrite", "xor")
    pull(made.local, made.source, 1, base_dir=made.base)
    return made


def refused(stream: Stream, target: int, kind: type[StreamError], message: str) -> StreamError:
    with pytest.raises(kind, match=message) as caught:
        pull(stream.local, stream.source, target, base_dir=stream.base)
    assert type(caught.value) is kind
    assert caught.value.local_version == 1
    assert contents_of(stream.local) == stream.at(1)
    return caught.value


@pytest.mark.parametrize(
    ("metadata", "kind", "message"),
    [
        ({"version": "000003"}, VersionMalformed, "says that it is version 3, wanted the 2"),
        ({"version": 2}, VersionMalformed, "version is 2, wanted digits"),
        ({"version": None}, VersionMalformed, "version is None"),
        ({"version": "²"}, VersionMalformed, "version is '²'"),
        ({"version": "9" * 30}, VersionMalformed, "version is '999"),
        ({"base_version": None}, VersionMalformed, "base_version is None"),
        ({"base_version": "-1"}, VersionMalformed, "base_version is '-1'"),
        ({"base_version": "000002"}, OutOfOrder, "builds on 2, wanted one before it"),
        ({"base_version": "000009"}, OutOfOrder, "builds on 9"),
        ({"delta_encoding": "gzip"}, UnknownEncoding, "'gzip', wanted one of xor, overwrite"),
        ({"delta_encoding": ["xor"]}, UnknownEncoding, "delta_encoding"),
        ({"compression_format": "lz4"}, UnknownEncoding, "compression_format 'lz4'"),
        ({"compression_format": None}, UnknownEncoding, "compression_format None"),
        ({"checksum_format": "md5"}, UnknownEncoding, "checksum_format 'md5'"),
        ({"checksum_format": {}}, UnknownEncoding, "checksum_format"),
    ],
)
def test_metadata(
    stream: Stream, metadata: dict[str, object], kind: type[StreamError], message: str
) -> None:
    edit_index(directory_of(stream.source, 2), **metadata)
    for target in (2, 3):
        refused(stream, target, kind, message)


@pytest.mark.parametrize(
    "file",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "a\\b.safetensors",
        ".safetensors",
        "..",
        "",
        "x.bin",
        7,
        None,
        "a\0.safetensors",
    ],
)
def test_a_weight_map_that_leads_elsewhere(stream: Stream, file: object) -> None:
    path = directory_of(stream.source, 2) / INDEX
    index = json.loads(path.read_text())
    index["weight_map"]["layers.0.weight"] = file
    path.write_text(json.dumps(index))
    refused(stream, 2, VersionMalformed, "is mapped to .* wanted the name of a")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"metadata": {}, "metadata": {}}', "\xff"]
)
def test_an_index_that_is_not_whole_is_not_ready(stream: Stream, text: str) -> None:
    (directory_of(stream.source, 2) / INDEX).write_text(text, encoding="latin-1")
    assert refused(stream, 2, SourceNotReady, INDEX).retryable


def test_an_index_cut_anywhere_is_not_ready(stream: Stream) -> None:
    path = directory_of(stream.source, 2) / INDEX
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 37):
        path.write_bytes(whole[:length])
        refused(stream, 2, SourceNotReady, "JSON")


@pytest.mark.parametrize(
    "index", [{"metadata": []}, {"metadata": {"delta_encoding": "xor"}}, {"weight_map": []}]
)
def test_an_index_of_another_shape(stream: Stream, index: dict[str, object]) -> None:
    path = directory_of(stream.source, 2) / INDEX
    whole = json.loads(path.read_text())
    if "weight_map" in index:
        index["metadata"] = whole["metadata"]
    path.write_text(json.dumps(index))
    refused(stream, 2, VersionMalformed, "wanted")


def test_an_index_larger_than_any_can_be(stream: Stream) -> None:
    path = directory_of(stream.source, 2) / INDEX
    path.write_bytes(path.read_bytes() + b" " * 2**20)
    refused(stream, 2, VersionMalformed, r"has \d+ bytes, wanted at most")


def test_an_index_that_is_no_file(stream: Stream) -> None:
    path = directory_of(stream.source, 2) / INDEX
    path.unlink()
    path.mkdir()
    refused(stream, 2, VersionMalformed, "not a regular file")


def test_a_missing_version_is_named_and_the_target_that_is_not_there_is_not_ready(
    stream: Stream,
) -> None:
    assert refused(stream, 4, SourceNotReady, "version 4 is not there").retryable
    shutil.rmtree(directory_of(stream.source, 2))
    assert not refused(stream, 3, VersionMissing, "version 2 is missing on the way to 3").retryable


def test_a_directory_that_a_publisher_has_only_begun_is_not_ready(stream: Stream) -> None:
    directory = directory_of(stream.source, 4)
    directory.mkdir()
    assert refused(stream, 4, SourceNotReady, r"version 4 is not published \(yet\)").retryable
    (directory / "model-00000-of-00001.safetensors.tmp").write_bytes(b"begun")
    refused(stream, 4, SourceNotReady, r"version 4 is not published \(yet\)")


def test_a_delta_that_skips_versions_needs_none_of_them(stream: Stream) -> None:
    edit_index(directory_of(stream.source, 3), base_version="000001")
    refused(stream, 3, DeltaDamaged, "gives bytes with the checksum")


def test_a_full_version_says_its_own_number(stream: Stream) -> None:
    stream.add("full")
    directory = directory_of(stream.source, 4)
    index = {"metadata": {"version": "000005"}, "weight_map": {}}
    (directory / INDEX).write_text(json.dumps(index))
    refused(stream, 4, VersionMalformed, "says that it is version 5")


def test_versions_are_listed_whatever_else_lies_there(stream: Stream) -> None:
    for name in ("weight_v7", "weight_v000000", "weight_v0000009", "aggregate", "x_weight_v000009"):
        (stream.source / name).mkdir()
    (stream.source / "weight_v1000000").mkdir()
    assert published_versions(stream.source) == (1, 2, 3, 1000000)
    with pytest.raises(SourceNotReady, match="cannot be listed"):
        published_versions(stream.source / "absent")


METADATA: st.SearchStrategy[dict[str, object]] = st.dictionaries(
    st.sampled_from(
        ["version", "base_version", "delta_encoding", "compression_format", "checksum_format", "x"]
    ),
    st.sampled_from(["000001", "000000", "xor", "zstd", "xxh3-128", "", None, 1, [], {}]),
)


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    METADATA,
    st.one_of(
        st.dictionaries(
            st.text(max_size=4), st.one_of(st.text(max_size=5), st.just("a.safetensors"))
        ),
        st.none(),
    ),
)
def test_any_index_is_read_or_refused(
    tmp_path: Path, metadata: dict[str, object], weight_map: object
) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    with Folder.open(tmp_path) as folder:
        error = refusal_of(lambda: read_index(folder, version=1, names=()))
        if error is not None:
            assert isinstance(error, StreamError)
            assert INDEX in str(error)
            return
        index = read_index(folder, version=1, names=())
    assert index is None or (index.version, index.base_version) == (1, 0)
