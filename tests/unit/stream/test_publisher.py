"""What is published is, byte for byte, what slime and miles write."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
import xxhash
import zstandard

from hotswap.stream import StreamError, UnknownEncoding, publish_delta
from hotswap.stream.encodings import Bytes
from hotswap.stream.layout import INDEX
from tests.unit.stream.streams import changed, made, publish


def blobs_of(path: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    arrays = safetensors.numpy.load(content)
    assert all(value.dtype == np.uint8 and value.ndim == 1 for value in arrays.values())
    return {name: value.tobytes() for name, value in arrays.items()}, header["__metadata__"]


def payload(encoding: str, old: Bytes, new: Bytes) -> bytes:
    if encoding == "xor":
        return (old ^ new).tobytes()
    positions = np.flatnonzero(old != new)
    count = len(positions).to_bytes(4, "little")
    return count + positions.astype("<u4").tobytes() + new[positions].tobytes()


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_files_hold_the_blobs_of_the_format(encoding: str, tmp_path: Path) -> None:
    old = made()
    new = changed(old, 1)
    directory = publish(tmp_path, 7, old, new, files=2, encoding=encoding)
    assert directory == tmp_path / "weight_v000007"
    files = ["model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"]
    assert sorted(os.listdir(directory)) == [*files, INDEX]
    names = sorted(new)
    for number, file in enumerate(files):
        blobs, checksums = blobs_of(directory / file)
        compressor = zstandard.ZstdCompressor(level=1)
        assert blobs == {
            name: compressor.compress(payload(encoding, old[name], new[name]))
            for name in names[number::2]
        }
        assert checksums == {name: xxhash.xxh3_128_hexdigest(new[name].data) for name in blobs}


def test_the_index_is_the_text_that_json_dumps_gives(tmp_path: Path) -> None:
    old = made(count=2)
    directory = publish(tmp_path, 7, old, changed(old, 1), checksum_format="adler32")
    file = "model-00000-of-00001.safetensors"
    assert (directory / INDEX).read_text() == (
        '{"metadata": {"version": "000007", "base_version": "000006", "delta_encoding": "xor", '
        '"compression_format": "zstd", "checksum_format": "adler32"}, '
        f'"weight_map": {{"layers.0.weight": "{file}", "layers.1.weight": "{file}"}}}}'
    )


def test_what_did_not_change_is_left_out(tmp_path: Path) -> None:
    old = made(count=3)
    new = old | {"layers.1.weight": changed(old, 1)["layers.1.weight"]}
    directory = publish(tmp_path, 1, old, new, files=3)
    assert sorted(os.listdir(directory)) == ["model-00000-of-00001.safetensors", INDEX]
    assert list(json.loads((directory / INDEX).read_text())["weight_map"]) == ["layers.1.weight"]


def test_a_version_without_change_is_an_index_alone(tmp_path: Path) -> None:
    old = made()
    directory = publish(tmp_path, 1, old, old)
    assert os.listdir(directory) == [INDEX]
    assert json.loads((directory / INDEX).read_text())["weight_map"] == {}


def test_the_index_comes_last_and_nothing_temporary_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = list[str]()
    replace = os.replace

    def noting(old: Path, new: Path) -> None:
        assert old.name == f"{new.name}.tmp"
        renamed.append(new.name)
        replace(old, new)

    monkeypatch.setattr(os, "replace", noting)
    old = made()
    directory = publish(tmp_path, 1, old, changed(old, 1), files=2)
    assert renamed == [*sorted(set(renamed) - {INDEX}), INDEX]
    assert len(renamed) == len(os.listdir(directory)) == 3


def test_what_cannot_be_published_is_refused(tmp_path: Path) -> None:
    old = made(count=1)
    change = ("layers.0.weight", old["layers.0.weight"], changed(old, 1)["layers.0.weight"])
    with pytest.raises(StreamError, match="version 0 cannot be published"):
        publish_delta(tmp_path, 0, [[change]])
    with pytest.raises(StreamError, match="is in two parts"):
        publish_delta(tmp_path, 1, [[change], [change]])
    with pytest.raises(UnknownEncoding, match="'md5'"):
        publish_delta(tmp_path, 1, [[change]], checksum_format="md5")
    with pytest.raises(UnknownEncoding, match="'zip', wanted one of xor, overwrite, gap"):
        publish_delta(tmp_path, 1, [[change]], encoding="zip")
    assert not (tmp_path / "weight_v000001" / INDEX).exists()


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        pytest.param(bytes(6), "of type bytes", id="bytes"),
        pytest.param(torch.zeros(6, dtype=torch.uint8), "of type Tensor", id="tensor"),
        pytest.param(np.zeros(6, np.float32), r"an array of float32, shape \(6,\), ", id="floats"),
        pytest.param(np.zeros((2, 3), np.uint8), r"an array of uint8, shape \(2, 3\), ", id="rows"),
        pytest.param(np.zeros(12, np.uint8)[::2], r"an array .* \(6,\), not contiguous", id="step"),
    ],
)
@pytest.mark.parametrize("which", ["old", "new"])
def test_what_is_no_flat_array_of_bytes_is_refused(
    value: Any, seen: str, which: str, tmp_path: Path
) -> None:
    old, new = (value if which == name else np.zeros(6, np.uint8) for name in ("old", "new"))
    with pytest.raises(TypeError, match=f"tensor 'w': its {which} bytes are {seen}"):
        publish_delta(tmp_path, 1, [[("w", old, new)]])
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused_leaves_no_directory_behind(tmp_path: Path) -> None:
    change = ("w", np.zeros(6, np.uint8), np.ones(6, np.uint8))
    for parts, refusal in (
        ([[change], [change]], "is in two parts"),
        ([[("w", change[1], np.ones(7, np.uint8))]], "from 6 bytes to 7"),
    ):
        with pytest.raises(StreamError, match=refusal):
            publish_delta(tmp_path, 1, parts)
    assert list(tmp_path.iterdir()) == []


def test_a_published_version_is_never_written_over(tmp_path: Path) -> None:
    old = made()
    directory = publish(tmp_path, 1, old, changed(old, 1))
    before = {file.name: file.read_bytes() for file in directory.iterdir()}
    with pytest.raises(StreamError, match=r"is published already.*publish the next"):
        publish(tmp_path, 1, old, changed(old, 2))
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == before
