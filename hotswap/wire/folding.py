"""Calls by which pickle itself spells what it has no opcode for, told apart by their shape.

Protocols 0 to 2 have no bytes: they are the encoding of a text in Latin-1, or an empty
``bytes()``. Protocols 0 and 1 make an instance by a call of the class's base.
"""

from __future__ import annotations

from hotswap.wire.names import CLASSES, Known
from hotswap.wire.records import Value, kind_of
from hotswap.wire.refused import PayloadRefused

__all__ = ["folded"]

_FOLDED = frozenset({Known.ENCODE, Known.RECONSTRUCTOR, Known.BYTES, Known.OBJECT})


def folded(called: Known, arguments: list[Value]) -> bytes | Known | None:
    """The bytes or the class that such a call spells; None for any other call.

    Raises: PayloadRefused when it has another shape.
    """
    if called not in _FOLDED:
        return None
    match called, arguments:
        case Known.ENCODE, [str(text), "latin1" | "latin-1"]:
            return _latin(text)
        case Known.BYTES, []:
            return b""
        case Known.RECONSTRUCTOR, [Known() as cls, Known.OBJECT, None] if cls in CLASSES:
            return cls
        case _:
            said = ", ".join(map(kind_of, arguments[:3]))
            raise PayloadRefused(f"{called}({said}): no way in which pickle writes bytes or fields")


def _latin(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise PayloadRefused("bytes that are spelt as a text have a character past 255") from error
