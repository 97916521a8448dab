"""Payloads that were damaged: some bytes, some opcodes, or one thing that they say."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import torch

from hotswap.errors import UpdateRejected
from hotswap.wire import Budget, PayloadRefused, Sent, decode, opened
from hotswap.wire.encoder import encode
from hotswap.wire.names import Known
from hotswap.wire.reader import read
from hotswap.wire.records import Call, Fields, Items, Value
from tests.unit.wire.audited import nothing_happens
from tests.unit.wire.test_tensors import value_of

__all__ = ["damaged", "judged"]

_ODD: tuple[Value, ...] = (
    None, True, False, -1, 0, 1, 3, 2**31, 2**62, 2**63 - 1, -(2**63), "", "x", "w", b"", b"x",
    b"/torch_1_2_3", b"/../etc/passwd", torch.uint8, torch.bfloat16, *Known,
)  # fmt: skip
_PIECES = (
    b"cos\nsystem\n", b"cbuiltins\neval\n", b"cctypes\nCDLL\n", b"\x8c\x02os\x8c\x06system\x93",
    b"X\x02\x00\x00\x00ls\x85R", b"(", b")", b"]", b"}", b".", b"0", b"2", b"h\x00", b"q\x00",
    b"\x94",
    b"\x82\x01", b"Pos\n", b"(ios\nsystem\n", b"\x80\x05", b"\x95" + b"\xff" * 8,
    b"\x8e" + b"\xff" * 8,
    b"X\xff\xff\xff\xff", b"b", b"R", b"\x81", b"\x92", b"s", b"u", b"e", b"t", b"N",
)  # fmt: skip


def damaged(draw: random.Random, payload: bytes) -> bytes:
    """``payload`` with something wrong with it, usually."""
    how: Callable[[random.Random, bytes], bytes] = draw.choice((_bytes, _spliced, _said))
    return how(draw, payload)


def judged(payload: bytes, *, load_format: str | None) -> bool:
    """Whether ``payload`` was accepted; it is then read out of shared memory too.

    Anything but a refusal is a failure, and so is any audit event; one that says nothing
    counts as accepted.
    """
    with nothing_happens():
        try:
            sent = decode(payload, load_format=load_format)
        except PayloadRefused as error:
            return not str(error)
    return _readable(sent)


def _readable(sent: Sent) -> bool:
    try:
        with opened(sent) as payloads:
            for name, payload in payloads.items():
                # One whose stride is 0 can have any size; a plan would have compared it first.
                if sent.tensors[name].size_bytes < 2**16:
                    value_of(payload)
    except UpdateRejected as error:
        return not str(error)
    return True


def _bytes(draw: random.Random, payload: bytes) -> bytes:
    changed = bytearray(payload)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(4):
            case 0:
                changed[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                changed[at:at] = draw.randbytes(draw.randrange(1, 9))
            case 2:
                del changed[at : at + draw.randrange(1, 9)]
            case _:
                del changed[at : at + draw.randrange(1, max(len(changed) // 2, 2))]
    return bytes(changed)


def _spliced(draw: random.Random, payload: bytes) -> bytes:
    changed = bytearray(payload)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(changed) + 1)
        if draw.random() < 0.5:
            changed[at:at] = draw.choice(_PIECES)
        else:
            start = draw.randrange(len(payload))
            changed[at:at] = payload[start : start + draw.randrange(1, 60)]
    return bytes(changed)


def _said(draw: random.Random, payload: bytes) -> bytes:
    """One thing that the payload says is another, and everything fits together again."""
    value = read(payload, Budget())
    places = list(_places(value))
    for change in draw.sample(places, min(len(places), draw.randrange(1, 3))):
        change(draw.choice(_ODD))
    return encode(value)


def _places(value: Value) -> Iterator[Callable[[Value], None]]:
    """Every place where something stands, as what puts something else there."""
    if isinstance(value, Items):
        for index, item in enumerate(value.values):
            yield partial(value.values.__setitem__, index)
            yield from _places(item)
    elif isinstance(value, Fields):
        for key, item in value.values.items():
            yield partial(value.values.__setitem__, key)
            yield from _places(item)
    elif isinstance(value, Call):
        yield from _places(value.arguments)
        if value.fields is not None:
            yield from _places(value.fields)
