"""A delta applied a piece at a time gives what it gives at once, and refuses the same blobs."""

from __future__ import annotations

import tracemalloc
from functools import partial

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.stream import DeltaDamaged, gap
from hotswap.stream.blobs import Delta
from hotswap.stream.encodings import Bytes, Encoding, encode
from hotswap.stream.gap_native import has_native
from hotswap.stream.piecewise import piecewise
from hotswap.stream.words import WORD_BYTES, different_words, whole_words
from tests.unit.stream.streams import refusal_of
from tests.unit.stream.test_encodings import DAMAGED, pairs


def delta(encoding: str, blob: memoryview) -> Delta:
    return Delta(
        version=3,
        name="w",
        encoding=Encoding(encoding),
        blob=blob,
        checksum_format="xxh3-128",
        checksum="",
    )


def applied(of: Delta, old: Bytes, size: int, *, among: int = 1) -> Bytes:
    tensor = old.copy()
    steps = piecewise(of, len(tensor), among=among)
    for at in range(0, len(tensor), size):
        piece = tensor[at : at + size]
        before = piece.copy()
        told = steps.apply(piece)
        assert np.all(np.diff(told) > 0)
        # It may name a word that did not change, but none that did is missing.
        assert set(different_words(before, piece)) <= set(told)
        assert len(told) == 0 or 0 <= told[0] <= told[-1] < whole_words(len(piece)) // WORD_BYTES
    steps.finish()
    untold = old.copy()
    quiet = piecewise(of, len(untold), among=among, told=False)
    for at in range(0, len(untold), size):
        quiet.apply(untold[at : at + size])
    quiet.finish()
    assert untold.tobytes() == tensor.tobytes()
    return tensor


@pytest.mark.parametrize("native", [True, False])
def test_each_says_how_far_it_is(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap, "has_native", lambda: native and has_native())
    old, new = np.zeros(40_000, np.uint8), np.zeros(40_000, np.uint8)
    draw = np.random.default_rng(5)
    new[draw.integers(0, 40_000, 200)] = draw.integers(1, 256, 200)
    gaps = "NativeSteps" if native and has_native() else "PlainSteps"
    wanted = {
        "xor": "<XorSteps version 3, tensor 'w'>",
        "overwrite": "<_Overwrite at byte 8000>",
        "gap": f"<{gaps} at byte 8000>",
    }
    for encoding, shown in wanted.items():
        blob = encode(Encoding(encoding), old, new)
        assert blob is not None
        steps = piecewise(delta(encoding, memoryview(blob)), 40_000)
        steps.apply(old[:8000].copy())
        assert repr(steps) == shown


@settings(deadline=None, max_examples=60)
@given(pairs(), st.sampled_from(Encoding), st.integers(1, 400))
def test_pieces_of_any_size(pair: tuple[Bytes, Bytes], encoding: Encoding, size: int) -> None:
    old, new = pair
    blob = encode(encoding, old, new)
    if blob is not None:
        assert applied(delta(encoding, memoryview(blob)), old, size).tobytes() == new.tobytes()


@pytest.mark.parametrize("among", [1, 2**20])
def test_decompressed_at_once_or_as_far_as_a_piece_needs(among: int) -> None:
    source = np.random.default_rng(4)
    old = source.integers(0, 256, 300_001, np.uint8)
    new = old.copy()
    new[source.integers(0, len(old), 3000)] ^= 1
    new[-1] ^= 1
    blob = encode(Encoding.XOR, old, new)
    assert blob is not None
    for _ in range(2):  # the second one gets the room of the first
        after = applied(delta("xor", memoryview(blob)), old, 2**16, among=among)
        assert after.tobytes() == new.tobytes()


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=80), st.sampled_from(Encoding), st.integers(0, 20))
def test_any_bytes_are_applied_or_refused(blob: bytes, encoding: Encoding, length: int) -> None:
    framed = zstandard.ZstdCompressor().compress(blob)
    for content in (blob, framed, framed + blob):
        of, old = delta(encoding, memoryview(content)), np.zeros(length, np.uint8)
        error = refusal_of(partial(applied, of, old, 7))
        assert error is None or str(error).startswith("version 3, tensor 'w': ")


@pytest.mark.parametrize(("encoding", "blob"), DAMAGED)
def test_a_damaged_blob_is_refused(encoding: str, blob: memoryview) -> None:
    with pytest.raises(DeltaDamaged, match="version 3, tensor 'w': "):
        applied(delta(encoding, blob), np.frombuffer(b"abcd", np.uint8), 3)


def test_a_blob_that_ends_early_or_is_cut() -> None:
    payload = np.random.default_rng(0).integers(0, 256, 200_000, np.uint8).tobytes()
    for sized in (True, False):
        whole = zstandard.ZstdCompressor(write_content_size=sized).compress(payload)
        for cut in (1, 1000, 150_000):
            with pytest.raises(DeltaDamaged, match="ends early"):
                applied(delta("xor", memoryview(whole[:-cut])), np.zeros(200_000, np.uint8), 4096)


def test_memory_does_not_grow_with_the_tensor() -> None:
    length = 64 * 2**20
    blob = zstandard.ZstdCompressor(level=1).compress(bytes(length))
    piece = np.zeros(2**20, np.uint8)
    piecewise(delta("xor", memoryview(blob)), length).apply(piece)  # a compiler is loaded once
    tracemalloc.start()
    try:
        steps = piecewise(delta("xor", memoryview(blob)), length)
        for _ in range(length // len(piece)):
            steps.apply(piece)
        steps.finish()
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
