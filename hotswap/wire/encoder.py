"""Writes records as a pickle of protocol 4: the reader's other direction.

Python's own pickler writes a class only where its module can be imported; trainers without
sglang have none of sglang's. This needs the name alone, and imports nothing either.
"""

from __future__ import annotations

import torch

from hotswap.wire.names import CLASSES, Known, spelled
from hotswap.wire.records import Call, Fields, Items, Value

__all__ = ["encode"]


def encode(value: Value) -> bytes:
    """``value`` as any unpickler reads it, and :func:`hotswap.wire.reader.read` too."""
    out = bytearray(b"\x80\x04")
    _write(value, out)
    out += b"."
    return bytes(out)


def _write(value: Value, out: bytearray) -> None:
    if isinstance(value, Items):
        _items(value, out)
    elif isinstance(value, Fields):
        _fields(value, out)
    elif isinstance(value, Call):
        _call(value, out)
    elif isinstance(value, Known | torch.dtype):
        module, name = spelled(value)
        out += f"c{module}\n{name}\n".encode("ascii")
    else:
        _constant(value, out)


def _constant(value: bool | int | str | bytes | None, out: bytearray) -> None:
    if value is None or isinstance(value, bool):
        out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
    elif isinstance(value, int):
        raw = value.to_bytes(9, "little", signed=True)
        out += b"\x8a\x09" + raw
    elif isinstance(value, str):
        text = value.encode("utf-8")
        out += b"X" + len(text).to_bytes(4, "little") + text
    else:
        out += b"B" + len(value).to_bytes(4, "little") + value


def _items(value: Items, out: bytearray) -> None:
    out += b"(" if value.is_tuple else b"]("
    for item in value.values:
        _write(item, out)
    out += b"t" if value.is_tuple else b"e"


def _fields(value: Fields, out: bytearray) -> None:
    out += b"}("
    for key, item in value.values.items():
        _constant(key, out)
        _write(item, out)
    out += b"u"


def _call(value: Call, out: bytearray) -> None:
    _write(value.name, out)
    _items(value.arguments, out)
    out += b"\x81" if value.name in CLASSES else b"R"
    if value.fields is not None:
        _fields(value.fields, out)
        out += b"b"
