"""Whatever a payload says, reading it takes bounded time, memory and nesting."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.wire import Budget, Limits, PayloadRefused, decode
from hotswap.wire.reader import read
from tests.unit.wire.audited import nothing_happens

SMALL = Limits(payload_bytes=4096, held_bytes=100_000, opcodes=1000, stack=100, memo=100, depth=10)
# A small part of the limits of a server, and of the 64 MiB that reading may take.
PART = Limits(payload_bytes=2**20, held_bytes=2**19, opcodes=10_000, stack=3_125, memo=6_250)
ROOM_BYTES = 2**20

BOMBS = {
    "opcodes": b"N" * 200_000 + b".",
    "opcodes that leave nothing": b"\x80\x04" * 100_000 + b".",
    "marks": b"(" * 200_000 + b".",
    "lists": b"]" * 200_000 + b".",
    "dicts": b"}" * 200_000 + b".",
    "lists in tuples": b"(" + b"]" * 3_000 + b"t" + b"(" + b"]" * 3_000 + b"t.",
    "tuples in tuples": b")" + b"\x85" * 200_000 + b".",
    "lists in lists": b"]" * 3_000 + b"a" * 3_000 + b".",
    "memo": b"N" + b"\x94" * 200_000 + b".",
    "memo in places far apart": b"N" + b"".join(
        b"r" + struct.pack("<I", 2**32 - 1 - n) for n in range(20_000)
    ) + b".",
    "each twice the one before": b"V" + b"x" * 100 + b"\nq\x00" + b"".join(
        b"(" + b"h" + bytes([n]) + b"h" + bytes([n]) + b"tq" + bytes([n + 1]) for n in range(200)
    ) + b".",
    "calls": b"ctorch\nSize\nq\x00" + b"h\x00)R" * 60_000 + b".",
    "texts": b"]" + b"X\x00\x00\x00\x00a" * 60_000 + b".",
    "wide characters": b"]" + (
        b"X" + struct.pack("<I", 2**15) + b"\xf0\x9f\x98\x80" + b"a" * (2**15 - 4) + b"a"
    ) * 60 + b".",
    "a long text": b"X" + struct.pack("<I", 2**31) + b"a" * 1000 + b".",
    "a long payload": b"N" * (2**20 + 1),
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_payload_takes_no_memory_and_ends(bomb: str) -> None:
    payload = BOMBS[bomb]
    tracemalloc.start()
    try:
        with nothing_happens(), pytest.raises(PayloadRefused):
            decode(payload, budget=Budget(PART))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < ROOM_BYTES


@pytest.mark.parametrize(
    ("payload", "wanted"),
    [
        (b"N" * 5000, "5000 bytes, wanted at most 4096"),
        (b"NN" * 600 + b".", "things on the stack"),
        (b"]" + b"Na" * 700, "more than 1000 opcodes"),
        (b"N" + b"\x94" * 200 + b".", "are memoised"),
        (b")" + b"\x85" * 20 + b".", "deep within each other"),
        (b"](" + b"}" * 90 + b"e](" + b"}" * 90 + b"e](" + b"}" * 90 + b"e.", "bytes of memory"),
    ],
)
def test_each_limit_says_which_it_is(payload: bytes, wanted: str) -> None:
    with pytest.raises(PayloadRefused, match=wanted):
        read(payload, Budget(SMALL))


def test_what_is_nested_is_charged_to_the_same_budget() -> None:
    """A part that many entries name costs as often as it is read."""
    inner = b"\x80\x02]" + b"Na" * 100 + b"."
    local = b"csglang.srt.model_executor.model_runner\nLocalSerializedTensor\n)\x81}"
    one = local + b"X\x06\x00\x00\x00values](B" + struct.pack("<I", len(inner)) + inner + b"esb"
    payload = b"\x80\x02]X\x01\x00\x00\x00a" + one + b"q\x00\x86a"
    payload += b"".join(b"X\x01\x00\x00\x00" + bytes([98 + n]) + b"h\x00\x86a" for n in range(20))
    budget = Budget(replace(SMALL, opcodes=250))
    with pytest.raises(PayloadRefused, match="more than 250 opcodes"):
        decode(payload + b".", budget=budget)


def test_a_payload_that_is_cut_off_anywhere_is_refused() -> None:
    payload = pickle.dumps([("name", (1, 2, b"abc", {"a": None})), ("other", 2**40)], 4)
    read(payload, Budget())
    for end in range(len(payload)):
        with nothing_happens(), pytest.raises(PayloadRefused):
            read(payload[:end], Budget())


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    with nothing_happens():
        try:
            read(payload, Budget())
        except PayloadRefused:
            return


OPCODE_BYTES = (
    b"\x80\x95.(N\x88\x89IJKML\x8aVX\x8c\x8dBC\x8e]ael)t\x85\x86\x87}dsucp\x93R\x81bqr\x94ghj"
)


@given(st.lists(st.sampled_from([bytes([b]) for b in OPCODE_BYTES] + [
    b"ctorch\nTensor\n", b"ctorch\nSize\n", b"h\x00", b"q\x00", b"K\x01", b"X\x01\x00\x00\x00a",
    b"csglang.srt.weight_sync.tensor_bucket\nFlattenedTensorMetadata\n",
]), max_size=60))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_any_program_of_its_opcodes_is_read_or_refused(program: list[bytes]) -> None:
    with nothing_happens():
        try:
            decode(b"".join(program) + b".")
        except PayloadRefused:
            return


def test_a_long_text_is_refused_before_it_is_made() -> None:
    """One wide character in it would make all of them wide."""
    payload = b"X" + struct.pack("<I", 2**20 + 1) + b"a" * (2**20 + 1) + b"."
    with pytest.raises(PayloadRefused, match="a text of 1048577 bytes, wanted at most 1048576"):
        read(payload, Budget())
