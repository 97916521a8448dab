"""Blobs that mean harm, or were cut: an error that names the tensor, and nothing else."""

from __future__ import annotations

import struct
import tracemalloc
from functools import partial

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.stream import DeltaDamaged
from hotswap.stream.encodings import Encoding, apply
from hotswap.stream.gap import encode_gap
from tests.unit.stream.streams import refusal_of
from tests.unit.stream.test_gap import pair
from tests.unit.stream.test_piecewise import applied, delta

ELEMENTS = 1000
WHERE = "version 3, tensor 'w'"


def head(
    *,
    magic: bytes = b"hsg\x01",
    kind: int = 1,
    width: int = 2,
    gap_width: int = 1,
    zero: int = 0,
    elements: int = ELEMENTS,
    changed: int = 2,
) -> bytes:
    return struct.pack("<4sBBBBQQ", magic, kind, width, gap_width, zero, elements, changed)


def blob(first: bytes, symbols: int, *streams: bytes, packed: int = 0) -> bytes:
    """Streams as they are; bit n of ``packed``: stream n is a frame."""
    sizes = [2 * len(stream) + (packed >> n & 1) for n, stream in enumerate(streams)]
    return first + struct.pack(f"<{1 + len(sizes)}Q", symbols, *sizes) + b"".join(streams)


def frame(size: int, *, sized: bool = True) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_content_size=sized).compress(bytes(size))


GOOD = blob(head(), 2, b"\x05\x06", b"\x01\x02", b"\0\0")

HOSTILE = {
    "empty": b"",
    "short": GOOD[:23],
    "cut before the sizes": GOOD[:40],
    "cut": GOOD[:-1],
    "more": GOOD + b"\0",
    "magic": b"HSG\x01" + GOOD[4:],
    "format": b"hsg\x02" + GOOD[4:],
    "kind": blob(head(kind=2), 2, b"\x05\x06", b"\x01\x02", b"\0\0"),
    "width": blob(head(width=3), 2, b"\x05\x06", b"\x01\x02", b"\0\0"),
    "another width": blob(head(width=1), 2, b"\x05\x06", b"\x01\x02"),
    "gap width": blob(head(gap_width=4), 2, b"\x05\x06", b"\x01\x02", b"\0\0"),
    "no gap width": blob(head(gap_width=0), 2, b"\x05\x06", b"\x01\x02", b"\0\0"),
    "reserved": blob(head(zero=1), 2, b"\x05\x06", b"\x01\x02", b"\0\0"),
    "elements": blob(head(elements=999), 2, b"\x05\x06", b"\x01\x02", b"\0\0"),
    "elements that overflow": blob(
        head(elements=2**63 + 500), 2, b"\x05\x06", b"\x01\x02", b"\0\0"
    ),
    "count over the elements": blob(
        head(changed=1001), 1001, bytes(1001), bytes(1001), bytes(1001)
    ),
    "a huge count": blob(head(changed=2**60), 2**60, frame(9), frame(9), frame(9), packed=7),
    "fewer gaps than values": blob(head(), 1, b"\x05", b"\x01\x02", b"\0\0"),
    "more gaps than values": blob(head(), 3, b"\x05\x06\x07", b"\x01\x02", b"\0\0"),
    "more escapes than fit": blob(head(), 6, b"\xff\xff\xff\xff\x05\x06", b"\x01\x02", b"\0\0"),
    "past the end": blob(head(), 5, b"\xff\xff\xff\xf0\x05", b"\x01\x02", b"\0\0"),
    "one past the end": blob(head(), 5, b"\xff\xff\xff\xe5\x05", b"\x01\x02", b"\0\0"),
    "no last end": blob(head(), 3, b"\x05\x06\xff", b"\x01\x02", b"\0\0"),
    "an escape for an end": blob(head(), 2, b"\x05\xff", b"\x01\x02", b"\0\0"),
    "gaps without changes": blob(head(changed=0), 1, b"\xff", b"", b""),
    "a short plane": blob(head(), 2, b"\x05\x06", b"\x01\x02", b"\0"),
    "a long plane": blob(head(), 2, b"\x05\x06", b"\x01\x02\x03", b"\0\0"),
    "a frame that is longer": blob(head(), 2, b"\x05\x06", frame(2**24), b"\0\0", packed=2),
    "a frame that is shorter": blob(head(), 2, b"\x05\x06", frame(1), b"\0\0", packed=2),
    "a frame without a size": blob(
        head(), 2, b"\x05\x06", frame(2, sized=False), b"\0\0", packed=2
    ),
    "no frame": blob(head(), 2, b"\x05\x06", b"\x01\x02", b"\0\0", packed=4),
    "a cut frame": blob(head(), 2, b"\x05\x06", frame(2)[:-1], b"\0\0", packed=2),
    "a frame and more": blob(head(), 2, b"\x05\x06", frame(2) + b"\0", b"\0\0", packed=2),
    "dense with a gap width": head(kind=0) + frame(2 * ELEMENTS),
    "dense, cut": head(kind=0, gap_width=0) + frame(2 * ELEMENTS)[:-1],
    "dense, longer": head(kind=0, gap_width=0) + frame(2 * ELEMENTS + 1),
    "dense, shorter": head(kind=0, gap_width=0) + frame(2 * ELEMENTS - 1),
    "dense, a bomb": head(kind=0, gap_width=0) + frame(2**24, sized=False),
    "dense, count over the elements": head(kind=0, gap_width=0, changed=1001) + frame(2000),
    "dense, another length": head(kind=0, gap_width=0, elements=1001) + frame(2002),
}


def test_the_blob_that_the_others_were_made_from_is_good() -> None:
    tensor = np.zeros(2 * ELEMENTS, np.uint8)
    apply(Encoding.GAP, memoryview(GOOD), tensor, where=WHERE)
    assert tensor.view("<u2")[[5, 12]].tolist() == [1, 2]
    assert np.count_nonzero(tensor) == 2
    last = blob(head(), 5, b"\xff\xff\xff\xe4\x05", b"\x01\x02", b"\0\0")
    apply(Encoding.GAP, memoryview(last), tensor, where=WHERE)
    assert tensor.view("<u2")[[993, 999]].tolist() == [1, 2]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_blob_is_refused_and_takes_no_memory(name: str) -> None:
    hostile = memoryview(HOSTILE[name])
    tensor = np.zeros(2 * ELEMENTS, np.uint8)
    tracemalloc.start()
    try:
        with pytest.raises(DeltaDamaged, match=f"{WHERE}: "):
            apply(Encoding.GAP, hostile, tensor, where=WHERE)
        with pytest.raises(DeltaDamaged, match=f"{WHERE}: "):
            applied(delta("gap", hostile), tensor, 512)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert not tensor.any()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.data())
def test_a_blob_with_bytes_changed_is_applied_or_refused(width: int, data: st.DataObject) -> None:
    old, new = pair(width, 400, 0.05)
    good = encode_gap(old, new, width, native=False)
    assert good is not None
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    tensor = old.copy()
    error = refusal_of(partial(apply, Encoding.GAP, memoryview(bytes(bad)), tensor, where="here"))
    assert error is None or (str(error).startswith("here: ") and np.array_equal(tensor, old))
