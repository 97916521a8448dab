"""Headers of safetensors files, from those who write them and those who mean harm."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.errors import UpdateRejected
from hotswap.stream import VersionMalformed
from hotswap.stream.header import LENGTH_BYTES, Header, header_room, parse_header
from tests.unit.stream.streams import refusal_of

NUMBERS = st.one_of(st.integers(), st.sampled_from([0, 1, 2**63, True, None, 1.5, "1"]))
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.one_of(st.sampled_from(["U8", "BF16", 3]), st.text(max_size=4)),
        "shape": st.one_of(st.lists(NUMBERS, max_size=3), st.none()),
        "data_offsets": st.one_of(st.lists(NUMBERS, max_size=3), st.text(max_size=2)),
        "more": st.none(),
    },
)
OBJECTS = st.dictionaries(
    st.one_of(st.text(max_size=5), st.just("__metadata__")),
    st.one_of(ENTRIES, st.dictionaries(st.text(max_size=3), st.text(max_size=3)), NUMBERS),
    max_size=4,
)


def entry(begin: object, end: object, **others: object) -> dict[str, object]:
    return {"dtype": "U8", "shape": [1], "data_offsets": [begin, end]} | others


def parse(header: object) -> Header:
    return parse_header(json.dumps(header).encode(), source="file")


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.text(min_size=1, max_size=5), st.binary(max_size=9), max_size=4))
def test_what_safetensors_writes_is_read(contents: dict[str, bytes]) -> None:
    contents.pop("__metadata__", None)
    arrays = {name: np.frombuffer(value, np.uint8) for name, value in contents.items()}
    file = safetensors.numpy.save(arrays, metadata={"a": "b"})
    length = int.from_bytes(file[:LENGTH_BYTES], "little")
    header = parse_header(file[LENGTH_BYTES : LENGTH_BYTES + length], source="file")
    assert header.file_bytes == len(file)
    assert header.metadata == {"a": "b"}
    assert length <= header_room(contents)
    found = {n: file[s.offset : s.offset + s.length] for n, s in header.spans.items()}
    assert found == contents


@settings(deadline=None, max_examples=40)
@given(OBJECTS)
def test_any_header_is_read_or_refused(header: dict[str, object]) -> None:
    error = refusal_of(lambda: parse(header))
    if error is not None:
        assert str(error).startswith("file")
        return
    parsed = parse(header)
    covered = sum(span.length for span in parsed.spans.values())
    assert parsed.file_bytes == parsed.data_offset + covered


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=40))
def test_any_bytes_are_refused_in_words(text: bytes) -> None:
    error = refusal_of(lambda: parse_header(text, source="file"))
    assert error is None or str(error).startswith("file")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry(1, 2)}, "begins at byte .* leaves a hole"),
        ({"a": entry(0, 2), "b": entry(1, 3)}, "overlaps the tensor before it"),
        ({"a": entry(0, 1), "b": entry(2, 3)}, "leaves a hole"),
        ({"a": entry(2, 1)}, "data_offsets"),
        ({"a": entry(-1, 1)}, "data_offsets"),
        ({"a": entry(0, 2**63)}, "data_offsets"),
        ({"a": entry(False, True)}, "data_offsets"),
        ({"a": entry(0, 1, shape=[-1])}, "shape"),
        ({"a": entry(0, 1, dtype=1)}, "dtype 1"),
        ({"a": entry(0, 1, more=1)}, "wants exactly"),
        ({"a": 1}, "wants exactly"),
        ({"__metadata__": {"a": 1}}, "__metadata__"),
        ({"__metadata__": []}, "__metadata__"),
    ],
)
def test_a_header_with_holes_overlaps_or_other_entries(header: object, message: str) -> None:
    with pytest.raises(VersionMalformed, match=message):
        parse(header)


def test_a_key_that_is_there_twice() -> None:
    with pytest.raises(UpdateRejected, match="appears twice"):
        parse_header(b'{"a": 1, "a": 1}', source="file")


def test_the_room_of_a_header_is_bounded() -> None:
    assert header_room([]) == 64 * 2**10
    assert header_room(["x" * 10_000_000] * 10) == 100 * 2**20
