"""Decoded deltas that are kept: known by their bytes, bounded, and the same as before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotswap.stream import Keep, gap_native, pull
from hotswap.stream.append import LogLimits
from hotswap.stream.blobs import Delta
from hotswap.stream.encodings import Encoding, encode
from hotswap.stream.gap import decode_gap, steps_in_turn
from hotswap.stream.gap_layout import GapHead, Sparse
from hotswap.stream.gap_memory import LOGGED, GapMemory
from hotswap.stream.piecewise import piecewise, untold
from tests.unit.stream.streams import Stream, held_contents

LENGTH = 200_000


def blob_of(seed: int) -> memoryview:
    source = np.random.default_rng(seed)
    old = source.integers(0, 256, LENGTH, np.uint8)
    new = old.copy()
    at = source.integers(0, LENGTH // 2, 2000)
    new.view("<u2")[at] ^= source.integers(1, 8, 2000).astype("<u2")
    blob = encode(Encoding.GAP, old, new, width=2)
    assert blob is not None
    return memoryview(blob)


def sparse_of(blob: memoryview) -> Sparse:
    change = decode_gap(blob, LENGTH, where="here")
    assert isinstance(change, Sparse)
    return change


def test_what_was_not_asked_for_longest_goes_first() -> None:
    blobs = [blob_of(seed) for seed in range(4)]
    changes = [sparse_of(blob) for blob in blobs]
    memory = GapMemory(sum(change.size_bytes for change in changes[:3]))
    for blob, change in zip(blobs[:3], changes, strict=False):
        memory.keep(blob, LENGTH, change)
        memory.keep(blob, LENGTH, change)
    assert memory.get(blobs[0], LENGTH) is changes[0]
    memory.keep(blobs[3], LENGTH, changes[3])
    assert memory.size_bytes <= memory.limit_bytes
    assert memory.get(blobs[1], LENGTH) is None
    assert memory.get(blobs[0], LENGTH) is changes[0]
    assert memory.get(blobs[3], LENGTH) is changes[3]
    memory.clear()
    assert repr(memory) == f"<GapMemory 0 deltas, 0 of {memory.limit_bytes} B>"
    assert memory.get(blobs[0], LENGTH) is None


def test_only_the_same_blob_for_the_same_tensor_is_known() -> None:
    blob, memory = blob_of(1), GapMemory()
    memory.keep(blob, LENGTH, sparse_of(blob))
    assert memory.get(memoryview(bytes(blob)), LENGTH) is not None
    assert memory.get(blob, LENGTH + 2) is None
    assert memory.get(memoryview(bytes(blob[:-1]) + b"x"), LENGTH) is None


def test_more_than_may_be_kept_is_not() -> None:
    memory = GapMemory(10)
    memory.keep(blob_of(1), LENGTH, sparse_of(blob_of(1)))
    assert memory.size_bytes == 0


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("native", [False, True])
def test_steps_that_nobody_asks_for_words_change_the_same(
    width: int, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernels as Python runs them: what numba makes of them has a test of its own.
    monkeypatch.setattr(gap_native, "_compiled", lambda kernel, *called: kernel)
    source = np.random.default_rng(width)
    symbols = source.integers(0, 255, 90).astype(np.uint8)
    symbols[40:42] = 255  # no gap ends there, but the next one is longer
    ended = symbols != 255
    at = (np.cumsum(symbols.astype(np.int64) + ended) - 1)[ended]
    old = source.integers(0, 256, int(at[-1] + 1) * width, np.uint8)
    values = source.integers(1, 256, len(at)).astype(f"<u{width}")
    new = old.copy()
    new.view(values.dtype)[at] ^= values
    head = GapHead(width=width, gap_width=1, elements=len(old) // width, changed=len(at))
    change = Sparse(head=head, symbols=symbols, values=values)
    gaps = (np.diff(at, prepend=-1) - 1).astype("<u2")
    wide = Sparse(head=replace(head, gap_width=2), symbols=gaps, values=values)
    for piece_bytes in (8 * width, 1 << 12, len(old)):
        now = old.copy()
        for steps in steps_in_turn([change, wide, change], native=native):
            for begin in range(0, len(old), piece_bytes):
                steps.apply(now[begin : begin + piece_bytes])
            steps.finish()
        assert np.array_equal(now, new)


def test_piecewise_decodes_once() -> None:
    blob, memory = blob_of(1), GapMemory()
    first = Delta(
        version=1,
        name="w",
        encoding=Encoding.GAP,
        blob=blob,
        checksum_format="xxh3-128",
        checksum="",
    )
    for _ in range(2):
        assert len(list(untold([first], LENGTH, among=1, memory=memory))) == 1
        piecewise(first, LENGTH, memory=memory)
    assert memory.size_bytes == sparse_of(blob).size_bytes


def test_pulls_to_a_log_find_what_they_decoded(tmp_path: Path) -> None:
    """And files and folds leave nothing: what they decode is not applied again."""
    stream = Stream(tmp_path, "gap", "gap", "gap", length=100_000)
    limits = LogLimits(share=100.0)
    sizes = list[int]()
    LOGGED.clear()
    for target, keep in ((0, Keep.LOG), (1, Keep.LOG), (2, Keep.LOG), (3, Keep.FILES)):
        pull(stream.local, stream.source, target, base_dir=stream.base, keep=keep, limits=limits)
        assert held_contents(stream.local) == stream.at(target)
        sizes.append(LOGGED.size_bytes)
    assert sizes[0] == 0 < sizes[1] < sizes[2] == sizes[3]
    LOGGED.clear()
