"""xor and overwrite: what comes out, and what hostile blobs do."""

from __future__ import annotations

import tracemalloc
from functools import partial

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.stream import DeltaDamaged, StreamError
from hotswap.stream.encodings import Bytes, Encoding, apply, encode, max_compressed_bytes
from tests.unit.stream.streams import refusal_of

tensors = st.binary(max_size=300).map(lambda content: np.frombuffer(content, np.uint8))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Bytes, Bytes]:
    old = draw(tensors)
    new = old.copy()
    for position in draw(st.lists(st.integers(0, max(len(old) - 1, 0)), max_size=20)):
        if len(new):
            new[position] = draw(st.integers(0, 255))
    return old, new


def compressed(payload: bytes, *, write_content_size: bool = True) -> memoryview:
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=write_content_size)
    return memoryview(compressor.compress(payload))


def overwrite(count: int, positions: list[int], values: bytes) -> memoryview:
    packed = b"".join(number.to_bytes(4, "little") for number in (count, *positions))
    return compressed(packed + values)


@settings(deadline=None, max_examples=40)
@given(pairs(), st.sampled_from(Encoding))
def test_a_blob_turns_the_old_bytes_into_the_new(
    pair: tuple[Bytes, Bytes], encoding: Encoding
) -> None:
    old, new = pair
    blob = encode(encoding, old, new)
    assert (blob is None) == bool(np.array_equal(old, new))
    if blob is not None:
        tensor = old.copy()
        apply(encoding, memoryview(blob), tensor, where="here")
        assert tensor.tobytes() == new.tobytes()
        assert len(blob) <= max_compressed_bytes(encoding, len(old))


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=200), st.sampled_from(Encoding), st.integers(0, 64))
def test_bytes_that_are_no_blob_are_refused_or_change_the_tensor_alone(
    blob: bytes, encoding: Encoding, length: int
) -> None:
    for payload in (memoryview(blob), compressed(blob)):
        tensor = np.zeros(length, np.uint8)
        error = refusal_of(partial(apply, encoding, payload, tensor, where="here"))
        assert error is None or (str(error).startswith("here: ") and not tensor.any())
        assert len(tensor) == length


DAMAGED = [
    ("xor", compressed(b"123")),
    ("xor", compressed(b"12345")),
    ("xor", compressed(b"")),
    ("xor", compressed(b"1234", write_content_size=False)[:-1]),
    ("xor", compressed(b"12345", write_content_size=False)),
    ("xor", memoryview(b"")),
    ("xor", memoryview(b"no zstd frame")),
    ("xor", memoryview(bytes(compressed(b"1234")) + b"tail")),
    ("xor", memoryview(bytes(compressed(b"1234")) * 2)),
    ("overwrite", compressed(b"")),
    ("overwrite", compressed(b"\0\0")),
    ("overwrite", overwrite(1, [], b"")),
    ("overwrite", overwrite(2**32 - 1, [0], b"a")),
    ("overwrite", overwrite(1, [4], b"a")),
    ("overwrite", overwrite(1, [2**32 - 1], b"a")),
    ("overwrite", overwrite(2, [1, 1], b"ab")),
    ("overwrite", overwrite(2, [2, 1], b"ab")),
    ("overwrite", overwrite(1, [0], b"ab")),
    ("overwrite", overwrite(5, [0, 1, 2, 3, 4], b"abcde")),
]


@pytest.mark.parametrize(("encoding", "blob"), DAMAGED)
def test_a_damaged_blob_changes_nothing(encoding: str, blob: memoryview) -> None:
    tensor = np.frombuffer(bytearray(b"abcd"), np.uint8)
    with pytest.raises(DeltaDamaged, match="version 3, tensor 'w': "):
        apply(Encoding(encoding), blob, tensor, where="version 3, tensor 'w'")
    assert tensor.tobytes() == b"abcd"


def test_an_xor_blob_may_leave_its_size_out() -> None:
    tensor = np.frombuffer(bytearray(b"\1\2\3\4"), np.uint8)
    blob = compressed(b"\1\1\1\1", write_content_size=False)
    apply(Encoding.XOR, blob, tensor, where="here")
    assert tensor.tobytes() == b"\0\3\2\5"


@pytest.mark.parametrize("sized", [True, False])
def test_a_bomb_takes_no_memory(sized: bool) -> None:
    bomb = compressed(bytes(200 * 2**20), write_content_size=sized)
    assert len(bomb) < 50_000
    tensor = np.zeros(1000, np.uint8)
    tracemalloc.start()
    try:
        for encoding in Encoding:
            with pytest.raises(DeltaDamaged):
                apply(encoding, bomb, tensor, where="here")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(StreamError, match="same length"):
        encode(Encoding.XOR, np.zeros(3, np.uint8), np.zeros(4, np.uint8))
    long = np.broadcast_to(np.uint8(0), 2**32 + 1)
    with pytest.raises(StreamError, match="publish with xor"):
        encode(Encoding.OVERWRITE, long, long)
