"""gap: exact for every width, never much longer than xor, the same with and without numba."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.stream import gap_native, gap_search
from hotswap.stream.checksums import checksum, new_hasher
from hotswap.stream.encodings import Bytes, Encoding, hasher_for
from hotswap.stream.gap import Steps, decode_gap, encode_gap, steps_of
from hotswap.stream.gap_layout import HEAD_BYTES, WIDTHS, Sparse, head_of
from hotswap.stream.piecewise import piecewise
from hotswap.stream.words import different_words
from tests.unit.stream.test_piecewise import delta

SHARES = (0.0, 0.0005, 0.01, 0.2, 1.0)


def pair(width: int, elements: int, share: float, seed: int = 0) -> tuple[Bytes, Bytes]:
    """Old and new bytes of which ``share`` of the elements differ, in few of their bits."""
    source = np.random.default_rng(seed)
    old = source.integers(0, 256, elements * width, np.uint8)
    new = old.copy()
    at = np.flatnonzero(source.random(elements) < share)
    new.view(f"<u{width}")[at] ^= source.integers(1, 8, len(at)).astype(f"<u{width}")
    return old, new


def xor_frame(old: Bytes, new: Bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress((old ^ new).data)


def applied(blob: bytes, old: Bytes, *, size: int, native: bool) -> Bytes:
    """``old`` after ``blob``, ``size`` bytes at a time."""
    change = decode_gap(memoryview(blob), len(old), where="here")
    steps: Steps
    if isinstance(change, memoryview):
        steps = piecewise(delta("xor", change), len(old))
    else:
        steps = steps_of(change, native=native)
    tensor = old.copy()
    for at in range(0, len(tensor), size):
        piece = tensor[at : at + size]
        words = steps.apply(piece)
        changed = different_words(old[at : at + size], piece)
        assert np.all(np.diff(words) > 0)
        # An element that lies in two pieces may be told of in both.
        assert set(words) >= set(changed) if size % 8 else words.tolist() == changed.tolist()
    steps.finish()
    return tensor


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels as Python runs them: what numba makes of them has a test of its own."""

    def as_it_is(kernel: Callable[..., object]) -> Callable[..., object]:
        return kernel

    monkeypatch.setattr(gap_native, "_compiled", as_it_is)
    monkeypatch.setattr(gap_search, "_compiled", as_it_is)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("width", WIDTHS)
def test_exact_and_not_longer_than_xor(width: int, share: float) -> None:
    old, new = pair(width, 40_003, share)
    blob = encode_gap(old, new, width, native=False)
    if not share:
        assert blob is None
        return
    assert blob is not None
    assert len(blob) <= len(xor_frame(old, new)) + HEAD_BYTES
    head = head_of(memoryview(blob), len(old), where="here")
    changed = int(np.count_nonzero(old.view(f"<u{width}") != new.view(f"<u{width}")))
    assert (head.width, head.elements, head.changed) == (width, 40_003, changed)
    for size in (len(old), 4096, 1001):
        assert np.array_equal(applied(blob, old, size=size, native=False), new)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("width", WIDTHS)
def test_the_kernels_find_and_make_what_numpy_does(width: int) -> None:
    old, new = pair(width, 2003, 0.05)
    new[: 600 * width] = old[: 600 * width]  # a gap of more than one byte
    hasher = hasher_for(Encoding.GAP, "xxh3-128")
    blob = encode_gap(old, new, width, hasher=hasher, native=True)
    assert blob is not None
    assert blob == encode_gap(old, new, width, native=False)
    assert hasher.hexdigest() == checksum("xxh3-128", new.data)
    for size in (len(old), 64, 7):
        assert np.array_equal(applied(blob, old, size=size, native=True), new)


@st.composite
def changes(draw: st.DrawFn) -> tuple[int, Bytes, Bytes]:
    width = draw(st.sampled_from(WIDTHS))
    elements = draw(st.integers(0, 60))
    old = np.frombuffer(draw(st.binary(min_size=elements * width, max_size=elements * width)), "u1")
    new = old.copy()
    if elements:
        for at in draw(st.lists(st.integers(0, elements - 1), max_size=12)):
            new[at * width + draw(st.integers(0, width - 1))] = draw(st.integers(0, 255))
    return width, old, new


@settings(max_examples=80, deadline=None)
@given(changes(), st.integers(1, 40))
def test_any_change_in_pieces_of_any_size(change: tuple[int, Bytes, Bytes], size: int) -> None:
    width, old, new = change
    blob = encode_gap(old, new, width, native=False)
    assert (blob is None) == np.array_equal(old, new)
    if blob is not None:
        assert len(blob) <= len(xor_frame(old, new)) + 64
        assert np.array_equal(applied(blob, old, size=size, native=False), new)


@pytest.mark.parametrize("gap", [0, 253, 254, 255, 256, 510, 511, 65534, 65535, 65536, 200_000])
@pytest.mark.parametrize("close", [0, 2000])
def test_gaps_around_the_escape(gap: int, close: int) -> None:
    """``close`` elements follow the gap at once, so that gaps take one byte each."""
    elements = gap + 2 + close
    old = np.zeros(2 * elements, np.uint8)
    new = old.copy()
    new.view("<u2")[[0, *range(gap + 1, elements)]] = 1
    blob = encode_gap(old, new, 2, native=False)
    assert blob is not None
    assert np.array_equal(applied(blob, old, size=len(old), native=False), new)


def test_what_cost_follows_is_the_number_of_changes() -> None:
    """Random places, one bit each: about 8 bits for a distance near 100, and the value."""
    old, new = pair(2, 2_000_000, 0.01)
    blob = encode_gap(old, new, 2, native=False)
    assert blob is not None
    changed = head_of(memoryview(blob), len(old), where="here").changed
    assert len(blob) < 1.8 * changed
    assert len(blob) < 0.55 * len(xor_frame(old, new))


def test_a_long_tensor_that_changed_in_a_pattern_is_compared_exactly() -> None:
    """Samples show that xor may be shorter, and then it is tried."""
    old = np.zeros(4_000_000, np.uint8)
    new = old.copy()
    new[::1000] = 1
    blob = encode_gap(old, new, 2, native=False)
    assert blob is not None
    assert len(blob) <= len(xor_frame(old, new)) + HEAD_BYTES
    assert np.array_equal(applied(blob, old, size=2**20, native=False), new)


def test_a_long_tensor_that_changed_in_one_place() -> None:
    old = np.zeros(3_000_000, np.uint8)
    new = old.copy()
    new[2_100_000:2_100_100] = 7
    blob = encode_gap(old, new, 1, native=False)
    assert blob is not None
    assert len(blob) <= len(xor_frame(old, new)) + HEAD_BYTES
    assert np.array_equal(applied(blob, old, size=2**20, native=False), new)


@pytest.mark.parametrize("elements", [0, 1, 15, 16, 1000, 32_768, 32_769, 4_300_003])
@pytest.mark.parametrize("name", ["xxh3-128", "adler32"])
def test_every_new_byte_is_hashed_in_order(name: str, elements: int) -> None:
    """By a loop that does both, where there is one, and without it; the blobs are the same."""
    old, new = pair(2, elements, 0.001)
    blobs = set[bytes | None]()
    for native, hasher in (
        (False, new_hasher(name)),
        (None, new_hasher(name)),
        (None, hasher_for(Encoding.GAP, name)),
    ):
        blobs.add(encode_gap(old, new, 2, hasher=hasher, native=native))
        assert hasher.hexdigest() == checksum(name, new.data)
    assert len(blobs) == 1


def test_dense_changes_are_sparse_where_that_is_shorter() -> None:
    """All elements, the low byte alone: planes compress better than what lies between."""
    source = np.random.default_rng(1)
    old = np.zeros(200_000, np.uint8)
    new = old.copy()
    new[::2] = 1 << source.integers(0, 3, 100_000)
    blob = encode_gap(old, new, 2, native=False)
    assert blob is not None
    assert isinstance(decode_gap(memoryview(blob), len(old), where="here"), Sparse)
    assert len(blob) < 0.8 * len(xor_frame(old, new))


@pytest.mark.parametrize("width", WIDTHS)
def test_compiled_and_plain_give_the_same_bytes(width: int) -> None:
    pytest.importorskip("numba", reason="needs hotswap[native]")
    for share in SHARES[1:]:
        old, new = pair(width, 40_003, share)
        blob = encode_gap(old, new, width, native=True)
        assert blob is not None
        assert blob == encode_gap(old, new, width, native=False)
        for size in (len(old), 4096, 1001):
            assert np.array_equal(applied(blob, old, size=size, native=True), new)


def test_an_unaligned_tensor_and_one_that_may_not_be_written(native: None) -> None:
    old, new = pair(4, 500, 0.1)
    shifted = np.frombuffer(b"\0" + old.tobytes(), np.uint8)[1:]
    for compiled in (False, True):
        blob = encode_gap(shifted, new, 4, native=compiled)
        assert blob is not None
        assert np.array_equal(applied(blob, shifted, size=1000, native=compiled), new)


def test_without_numba_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ImportError(name)

    gap_native.has_native.cache_clear()
    monkeypatch.setattr("importlib.import_module", absent)
    try:
        assert not gap_native.has_native()
        old, new = pair(2, 1000, 0.1)
        blob = encode_gap(old, new, 2)
        assert blob is not None
        assert np.array_equal(applied(blob, old, size=2000, native=False), new)
    finally:
        gap_native.has_native.cache_clear()


def test_what_a_search_of_many_changes_took_is_given_back(
    native: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gap_search, "_own", threading.local())
    for kept, is_kept in ((10, True), (9, False)):
        monkeypatch.setattr(gap_search, "_KEPT_ELEMENTS", kept)
        old = np.zeros(64, np.uint8)
        new = old.copy()
        new[::6][:10] = 1
        at, values = gap_search.native_changes(old, new, 2)
        assert (len(at), set(values.tolist())) == (10, {1})
        assert hasattr(gap_search._own, "room") is is_kept


@pytest.mark.parametrize("is_regular", [True, False], ids=["regular", "random"])
@pytest.mark.parametrize("share", [0.0005, 0.01, 0.05])
def test_long_tensors_are_not_longer_than_xor_either(share: float, is_regular: bool) -> None:
    """Of which samples say what xor would take, unless the change is a pattern."""
    elements = 2**21
    old, new = pair(2, elements, 0.0 if is_regular else share)
    if is_regular:
        rows = new.view("<u2").reshape(-1, 1024)
        rows[:: round(1 / (16 * share)) or 1, :64] ^= 1
    blob = encode_gap(old, new, 2, native=False)
    assert blob is not None
    assert len(blob) <= len(xor_frame(old, new)) + 64
