"""Writes records as a pickle of protocol 4: the reader's other direction.

Python's own pickler writes a class only where its module can be imported; trainers without
sglang have none of sglang's. This needs the name alone, and imports nothing either.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hotswap.wire.names import CLASSES, Known, spelled
from hotswap.wire.records import Call, Fields, Items, Value

__all__ = ["encode"]


def encode(value: Value, *, modules: Mapping[Known, str] | None = None) -> bytes:
    """``value`` as any unpickler reads it, and :func:`hotswap.wire.reader.read` too.

    ``modules`` says where the reader has a name, for those that another version has elsewhere.
    """
    writer = _Writer(modules or {})
    writer.write(value)
    return b"\x80\x04" + bytes(writer.out) + b"."


class _Writer:
    def __init__(self, modules: Mapping[Known, str]) -> None:
        self.out = bytearray()
        self._modules = modules

    def write(self, value: Value) -> None:
        if isinstance(value, Items):
            self._items(value)
        elif isinstance(value, Fields):
            self._fields(value)
        elif isinstance(value, Call):
            self._call(value)
        elif isinstance(value, Known | torch.dtype):
            self._name(value)
        else:
            self.out += _constant(value)

    def _name(self, value: Known | torch.dtype) -> None:
        module, name = spelled(value)
        if isinstance(value, Known):
            module = self._modules.get(value, module)
        self.out += f"c{module}\n{name}\n".encode("ascii")

    def _items(self, value: Items) -> None:
        self.out += b"(" if value.is_tuple else b"]("
        for item in value.values:
            self.write(item)
        self.out += b"t" if value.is_tuple else b"e"

    def _fields(self, value: Fields) -> None:
        self.out += b"}("
        for key, item in value.values.items():
            self.out += _constant(key)
            self.write(item)
        self.out += b"u"

    def _call(self, value: Call) -> None:
        self.write(value.name)
        self._items(value.arguments)
        self.out += b"\x81" if value.name in CLASSES else b"R"
        if value.fields is not None:
            self._fields(value.fields)
            self.out += b"b"


def _constant(value: bool | int | str | bytes | None) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)
    if isinstance(value, str):
        text = value.encode("utf-8")
        return b"X" + len(text).to_bytes(4, "little") + text
    return b"B" + len(value).to_bytes(4, "little") + value
