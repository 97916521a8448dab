"""The safetensors header: each rule by hand, then mutated headers by the thousand."""

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotswap.errors import UpdateRejected
from hotswap.testing.raw_safetensors import entry, pack
from hotswap.weights.folder import Folder
from hotswap.weights.safetensors_header import DTYPES, Extent, read_header

MAX_HEADER = 100 * 2**20


def read(tmp_path: Path, content: bytes) -> tuple[Extent, ...]:
    (tmp_path / "m.safetensors").write_bytes(content)
    with Folder.open(tmp_path) as folder, folder.open_file("m.safetensors") as file:
        return read_header(file)


W = entry("F32", [2], 0, 8)

BAD: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "0 bytes is no safetensors file"),
    "seven bytes": (b"1234567", "truncated"),
    "length past the end": (pack({"w": W}, bytes(8), length=10_000), "10000 bytes"),
    "length of 2^64 - 1": (pack({"w": W}, bytes(8), length=2**64 - 1), "truncated or no"),
    "length zero": (pack({"w": W}, bytes(8), length=0), "no safetensors file"),
    "leading space": (pack(b" {}"), "starts with"),
    "not JSON": (pack(b"{nonsense}"), "not valid JSON"),
    "not UTF-8": (pack(b'{"\xff": 1}'), "not valid JSON"),
    "an array": (pack([]), "starts with"),
    "two objects": (pack(b"{}{}"), "not valid JSON"),
    "duplicate name": (
        pack(b'{"w": %b, "w": %b}' % ((json.dumps(W).encode(),) * 2), bytes(8)),
        "'w' appears twice",
    ),
    "duplicate key in an entry": (
        pack(b'{"w": {"dtype": "F32", "dtype": "F32", "shape": [], "data_offsets": [0, 4]}}'),
        "'dtype' appears twice",
    ),
    "lone surrogate": (pack({"\ud800": W}, bytes(8)), "surrogates not allowed"),
    "deep nesting": (pack(b'{"w": ' + b"[" * 200_000), "nested too deeply"),
    "no tensors": (pack({}), "0 tensors"),
    "metadata alone": (pack({"__metadata__": {"format": "pt"}}), "0 tensors"),
    "metadata is a number": (pack({"__metadata__": 1, "w": W}, bytes(8)), "__metadata__ is 1"),
    "metadata of numbers": (pack({"__metadata__": {"n": 1}, "w": W}, bytes(8)), "__metadata__ is"),
    "entry is a number": (pack({"w": 1}), "'w': header entry wants"),
    "entry lacks a key": (pack({"w": {"dtype": "F32", "shape": []}}), "'w': header entry wants"),
    "entry with another key": (pack({"w": W | {"x": 1}}, bytes(8)), "'w': header entry wants"),
    "unknown dtype": (pack({"w": entry("F4", [2], 0, 1)}, b"x"), "'w': dtype 'F4'"),
    "dtype is a number": (pack({"w": W | {"dtype": 3}}, bytes(8)), "'w': dtype 3"),
    "dtype is a list": (pack({"w": W | {"dtype": []}}, bytes(8)), r"'w': dtype []"),
    "shape is a number": (pack({"w": W | {"shape": 2}}, bytes(8)), "'w': shape 2"),
    "shape has a float": (pack({"w": W | {"shape": [2.0]}}, bytes(8)), "'w': shape [2.0]"),
    "shape has a bool": (pack({"w": W | {"shape": [True, 2]}}, bytes(8)), "'w': shape [True"),
    "shape is negative": (pack({"w": W | {"shape": [-1, -2]}}, bytes(8)), "'w': shape [-1"),
    "shape past int64": (pack({"w": entry("F32", [2**63, 0], 0, 0)}), "'w': shape"),
    "product past int64": (pack({"w": entry("F32", [2**62, 2**62, 0], 0, 0)}), "'w': 0 bytes"),
    "offsets missing one": (pack({"w": W | {"data_offsets": [0]}}, bytes(8)), "'w': data_offsets"),
    "offsets swapped": (pack({"w": W | {"data_offsets": [8, 0]}}, bytes(8)), "'w': data_offsets"),
    "offsets negative": (pack({"w": W | {"data_offsets": [-8, 0]}}, bytes(8)), "'w': data_offsets"),
    "size is not the product": (pack({"w": entry("F32", [2], 0, 7)}, bytes(7)), "'w': 7 bytes"),
    "truncated data": (pack({"w": W}, bytes(7)), "'w' ends at byte 8"),
    "bytes after the last": (pack({"w": W}, bytes(9)), "1 bytes after the last tensor"),
    "hole": (pack({"w": W, "v": entry("U8", [1], 9, 10)}, bytes(10)), "'v' at [9, 10] leaves"),
    "hole at the start": (pack({"w": entry("F32", [1], 4, 8)}, bytes(8)), "'w' at [4, 8] leaves"),
    "overlap": (pack({"w": W, "v": entry("U8", [2], 7, 9)}, bytes(9)), "'v' at [7, 9] overlaps"),
    "the same bytes twice": (pack({"w": W, "v": W}, bytes(8)), "overlaps"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_headers_are_refused_by_name(tmp_path: Path, case: str) -> None:
    content, says = BAD[case]
    with pytest.raises(UpdateRejected) as caught:
        read(tmp_path, content)
    assert says in str(caught.value)
    assert str(caught.value).startswith("m.safetensors")


def test_a_length_within_the_file_but_past_the_bound_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(pack(b"{", length=MAX_HEADER + 1))
    with path.open("r+b") as file:
        file.truncate(MAX_HEADER + 100)
    with (
        Folder.open(tmp_path) as folder,
        folder.open_file("m.safetensors") as file_,
        pytest.raises(UpdateRejected, match=f"{MAX_HEADER} are allowed"),
    ):
        read_header(file_)


def test_metadata_and_padding_are_ignored(tmp_path: Path) -> None:
    text = json.dumps({"__metadata__": {"format": "pt"}, "w": W}).encode() + b"   "
    [extent] = read(tmp_path, pack(text, bytes(8)))
    assert (str(extent.spec), extent.offset) == ("w [2] float32", 8 + len(text))


def test_extents_come_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    header = {
        "last": entry("U8", [2], 8, 10),
        "empty": entry("F32", [0, 3], 8, 8),
        "first": entry("F32", [2], 0, 8),
    }
    assert [e.spec.name for e in read(tmp_path, pack(header, bytes(10)))] == [
        "first",
        "empty",
        "last",
    ]


DTYPE_NAMES = [*DTYPES, "F4", "f32", "", "BF16 "]
NUMBERS = st.one_of(
    st.integers(-2, 40),
    st.sampled_from([2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]),
    st.booleans(),
    st.floats(allow_nan=True),
    st.none(),
    st.text(max_size=3),
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(DTYPE_NAMES) | NUMBERS,
        "shape": st.lists(NUMBERS, max_size=4) | NUMBERS,
        "data_offsets": st.lists(NUMBERS, max_size=3) | st.tuples(*[st.integers(0, 64)] * 2),
    }
)
HEADERS = st.dictionaries(st.text(max_size=4), ENTRIES | NUMBERS, max_size=4)


def check_within(extents: tuple[Extent, ...], content: bytes) -> None:
    (length,) = struct.unpack("<Q", content[:8])
    end = 8 + length
    for extent in extents:
        assert extent.offset == end
        end = extent.offset + extent.spec.size_bytes
        torch.empty(extent.spec.shape, dtype=extent.spec.dtype, device="meta")
    assert extents
    assert end == len(content)


fuzz = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@fuzz
@given(header=HEADERS, payload=st.binary(max_size=64))
def test_made_up_headers_are_refused_or_cover_the_file(
    tmp_path: Path, header: dict[str, object], payload: bytes
) -> None:
    content = pack(header, payload)
    try:
        extents = read(tmp_path, content)
    except UpdateRejected as error:
        str(error).encode()
    else:
        check_within(extents, content)


SEED_FILE = pack(
    {
        "__metadata__": {"format": "pt"},
        "a": entry("BF16", [2, 3], 0, 12),
        "b": entry("F32", [1], 12, 16),
        "c": entry("U8", [0], 16, 16),
    },
    bytes(range(16)),
)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "insert", "delete", "cut"]),
        st.integers(0, len(SEED_FILE) - 1),
        st.one_of(st.integers(0, 255), st.sampled_from(b'0123456789-,:[]{}" e.')),
    ),
    min_size=1,
    max_size=4,
)


def edited(edits: list[tuple[str, int, int]]) -> bytes:
    content = bytearray(SEED_FILE)
    for kind, at, byte in edits:
        if kind == "flip" and at < len(content):
            content[at] = byte
        elif kind == "insert":
            content.insert(at, byte)
            # Keep the stated length true now and then, so that deeper checks are reached.
            if byte % 2 and len(content) >= 8:
                content[0] = (content[0] + 1) % 256
        elif kind == "delete":
            del content[at : at + 1]
        elif kind == "cut":
            del content[max(at, 8) :]
    return bytes(content)


@fuzz
@given(edits=EDITS)
def test_mutated_files_are_refused_or_cover_the_file(
    tmp_path: Path, edits: list[tuple[str, int, int]]
) -> None:
    content = edited(edits)
    try:
        extents = read(tmp_path, content)
    except UpdateRejected as error:
        str(error).encode()
    else:
        check_within(extents, content)
