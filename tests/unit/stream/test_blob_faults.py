"""Blobs that are short, absent, damaged or of another shape, over both encodings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotswap.stream import (
    DeltaDamaged,
    SourceNotReady,
    StreamError,
    VersionMalformed,
    directory_of,
    pull,
)
from hotswap.stream.layout import INDEX
from tests.unit.stream.streams import Stream, contents_of, refusal_of

FILE = "model-00000-of-00001.safetensors"
FIRST = "layers.0.weight"


@pytest.fixture(params=["xor", "overwrite"])
def stream(tmp_path: Path, request: pytest.FixtureRequest) -> Stream:
    made = Stream(tmp_path, "xor", request.param)
    pull(made.local, made.source, 1, base_dir=made.base)
    return made


def blob_of(stream: Stream) -> Path:
    return directory_of(stream.source, 2) / FILE


def refused(stream: Stream, kind: type[StreamError], message: str) -> StreamError:
    with pytest.raises(kind, match=message) as caught:
        pull(stream.local, stream.source, 2, base_dir=stream.base)
    assert type(caught.value) is kind
    assert caught.value.local_version == 1
    assert contents_of(stream.local) == stream.at(1)
    return caught.value


def parts(file: bytes) -> tuple[dict[str, bytes], dict[str, str]]:
    """The blobs and the checksums of a delta's file."""
    length = int.from_bytes(file[:8], "little")
    metadata = json.loads(file[8 : 8 + length])["__metadata__"]
    return {n: np.asarray(v).tobytes() for n, v in safetensors.numpy.load(file).items()}, metadata


def rewritten(path: Path, blobs: Mapping[str, bytes], checksums: Mapping[str, str]) -> None:
    arrays = {name: np.frombuffer(blob, np.uint8) for name, blob in blobs.items()}
    path.write_bytes(safetensors.numpy.save(arrays, metadata=dict(checksums)))


def test_cut_at_every_length_class_it_is_not_ready(stream: Stream) -> None:
    whole = blob_of(stream).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for length in (0, 1, 7, 8, 9, header - 1, header, header + 1, len(whole) - 1):
        blob_of(stream).write_bytes(whole[:length])
        assert refused(stream, SourceNotReady, f"{length} bytes are there, wanted").retryable
    blob_of(stream).write_bytes(whole)
    pull(stream.local, stream.source, 2, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(2)


def test_absent_or_still_temporary_it_is_not_ready(stream: Stream) -> None:
    os.rename(blob_of(stream), blob_of(stream).with_suffix(".safetensors.tmp"))
    assert refused(stream, SourceNotReady, r"is not there \(yet\)").retryable


def test_longer_than_it_says(stream: Stream) -> None:
    blob_of(stream).write_bytes(blob_of(stream).read_bytes() + b"\0")
    refused(stream, VersionMalformed, "its header says")


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_no_file(stream: Stream, kind: str) -> None:
    blob_of(stream).unlink()
    if kind == "fifo":
        os.mkfifo(blob_of(stream))
    elif kind == "directory":
        blob_of(stream).mkdir()
    else:
        blob_of(stream).symlink_to("/dev/zero")
    refused(stream, VersionMalformed, "not a regular file")


def test_a_flipped_bit_anywhere_is_found(stream: Stream) -> None:
    whole = blob_of(stream).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for at in range(header, len(whole), (len(whole) - header) // 12):
        blob_of(stream).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        refused(stream, DeltaDamaged, "version 2, tensor 'layers")


def test_a_blob_of_another_tensor_is_damaged(stream: Stream) -> None:
    blobs, checksums = parts(blob_of(stream).read_bytes())
    blobs[FIRST] = blobs["layers.1.weight"]
    rewritten(blob_of(stream), blobs, checksums)
    refused(stream, DeltaDamaged, f"version 2, tensor '{FIRST}'")


@pytest.mark.parametrize("checksum", ["", "0", "z" * 32, "0" * 31, "A" * 32])
def test_a_checksum_of_another_form(stream: Stream, checksum: str) -> None:
    blobs, checksums = parts(blob_of(stream).read_bytes())
    rewritten(blob_of(stream), blobs, checksums | {FIRST: checksum})
    refused(stream, VersionMalformed, "has the checksum")


def test_a_wrong_checksum_is_a_damaged_delta(stream: Stream) -> None:
    blobs, checksums = parts(blob_of(stream).read_bytes())
    rewritten(blob_of(stream), blobs, checksums | {FIRST: "0" * 32})
    refused(stream, DeltaDamaged, f"tensor '{FIRST}': gives bytes with the checksum")


def test_names_that_disagree(stream: Stream) -> None:
    blobs, checksums = parts(blob_of(stream).read_bytes())
    fewer = {name: blob for name, blob in blobs.items() if name != FIRST}
    fewer_sums = {name: text for name, text in checksums.items() if name != FIRST}
    more, more_sums = blobs | {"more": b"x"}, checksums | {"more": "0" * 32}
    for others in ((fewer, checksums), (blobs, fewer_sums), (fewer, fewer_sums), (more, more_sums)):
        rewritten(blob_of(stream), *others)
        refused(stream, VersionMalformed, "disagree about 1 tensors")


def test_a_tensor_in_two_files_is_refused(stream: Stream) -> None:
    directory = directory_of(stream.source, 2)
    blobs, checksums = parts(blob_of(stream).read_bytes())
    other = directory / "other.safetensors"
    rewritten(other, blobs, checksums)
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"][FIRST] = other.name
    (directory / INDEX).write_text(json.dumps(index))
    refused(stream, VersionMalformed, "disagree about")


def test_a_file_that_the_index_does_not_name_is_not_read(stream: Stream) -> None:
    (directory_of(stream.source, 2) / "stray.safetensors").write_bytes(b"nothing of use")
    pull(stream.local, stream.source, 2, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(2)


def test_a_tensor_that_the_checkpoint_lacks(stream: Stream) -> None:
    directory = directory_of(stream.source, 2)
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"]["more"] = FILE
    (directory / INDEX).write_text(json.dumps(index))
    refused(stream, VersionMalformed, r"changes 1 tensors that the checkpoint lacks \('more'\)")


@pytest.mark.parametrize("dtype", ["I8", "U8", "F16"])
def test_a_blob_that_is_not_u8_of_one_dimension(stream: Stream, dtype: str) -> None:
    whole = blob_of(stream).read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header[FIRST] |= {"dtype": dtype, "shape": [1, *header[FIRST]["shape"]]}
    text = json.dumps(header).encode()
    blob_of(stream).write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
    refused(stream, VersionMalformed, "wanted U8 of one dimension")


@pytest.mark.parametrize("length", [2**20, 2**40, 2**64 - 1])
def test_a_header_longer_than_any_can_be(stream: Stream, length: int) -> None:
    whole = blob_of(stream).read_bytes()
    blob_of(stream).write_bytes(length.to_bytes(8, "little") + whole[8:] + bytes(2**20))
    refused(stream, VersionMalformed, f"says that its header has {length} bytes")


def test_a_blob_longer_than_any_compressor_makes_it(stream: Stream) -> None:
    blobs, checksums = parts(blob_of(stream).read_bytes())
    rewritten(blob_of(stream), blobs | {FIRST: bytes(2**20)}, checksums)
    refused(stream, VersionMalformed, "wanted at most .* for the tensors that it is about")


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_change_of_a_file_is_harmless_or_refused(stream: Stream, data: st.DataObject) -> None:
    path = blob_of(stream)
    whole = path.read_bytes()
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, min(len(whole), begin + 20)))
    path.write_bytes(whole[:begin] + data.draw(st.binary(max_size=20)) + whole[end:])
    error = refusal_of(lambda: pull(stream.local, stream.source, 2, base_dir=stream.base))
    path.write_bytes(whole)
    assert contents_of(stream.local) == stream.at(1 if error else 2)
    if error is None:
        pull(stream.local, stream.source, 1, base_dir=stream.base)
    else:
        assert isinstance(error, StreamError)
        assert error.local_version == 1
