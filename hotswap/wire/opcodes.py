"""The opcodes of pickle, protocols 0 to 5, that tensors, buckets and handles are written in.

``pickletools.genops`` reads all of them, copies the payload, takes integers and lines of
any length, and warns, which may open source files, on an odd escape. This reads less:
what stands in no payload of a trainer is refused by its name, and every length is
compared with a bound, and with what is there, before anything is made.

Source of the format: the comments of Python's own ``pickletools``.
"""

from __future__ import annotations

from codecs import raw_unicode_escape_decode
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from hotswap.wire.budget import Budget
from hotswap.wire.refused import PayloadRefused, shown

__all__ = ["Argument", "read_opcodes"]

Argument: TypeAlias = int | bool | str | bytes | None
_Read: TypeAlias = Callable[[bytes, int], tuple[Argument, int]]

_MAX_TEXT_BYTES = 2**20  # one character of four bytes makes all of them as wide
_MAX_NUMBER = 40  # characters, and far more than a 64-bit integer has
_MAX_INTEGER_BYTES = 9
_MAX_NAME_BYTES = 256


def read_opcodes(payload: bytes, budget: Budget) -> Iterator[tuple[str, Argument]]:
    """Name and argument of each opcode up to and with STOP, which has to be the last byte.

    Raises: PayloadRefused naming the opcode or what is wrong with it, and where.
    """
    at = 0
    while True:
        budget.step()
        if at >= len(payload):
            raise PayloadRefused(f"the payload ends after {at} bytes without STOP; it was cut off")
        name, read = _OPCODES.get(payload[at], _NO_OPCODE)
        if read is None:
            why = _REFUSED.get(payload[at])
            what = f"opcode {why}" if why else f"byte {payload[at]:#04x}, which is no opcode,"
            raise PayloadRefused(
                f"{what} at byte {at}: stands in no tensor, bucket or handle; send those alone"
            )
        try:
            argument, after = read(payload, at + 1)
        except _Bad as error:
            raise PayloadRefused(f"opcode {name} at byte {at}: {error}") from error
        yield name, argument
        if name == "STOP":
            if after != len(payload):
                raise PayloadRefused(
                    f"{len(payload) - after} bytes follow STOP at byte {at}, wanted none"
                )
            return
        at = after


class _Bad(Exception):
    """What is wrong with an argument."""


def _nothing(payload: bytes, at: int) -> tuple[Argument, int]:
    return None, at


def _taken(payload: bytes, at: int, length: int) -> bytes:
    if length > len(payload) - at:
        raise _Bad(f"wants {length} bytes of argument and {len(payload) - at} are left")
    return payload[at : at + length]


def _unsigned(width: int) -> _Read:
    def read(payload: bytes, at: int) -> tuple[Argument, int]:
        return int.from_bytes(_taken(payload, at, width), "little"), at + width

    return read


def _signed(payload: bytes, at: int) -> tuple[Argument, int]:
    return int.from_bytes(_taken(payload, at, 4), "little", signed=True), at + 4


def _counted(width: int, make: Callable[[bytes], Argument]) -> _Read:
    def read(payload: bytes, at: int) -> tuple[Argument, int]:
        length = int.from_bytes(_taken(payload, at, width), "little")
        start = at + width
        return make(_taken(payload, start, length)), start + length

    return read


def _line(make: Callable[[bytes], Argument], *, limit: int = _MAX_TEXT_BYTES) -> _Read:
    def read(payload: bytes, at: int) -> tuple[Argument, int]:
        end = _end_of_line(payload, at, limit)
        return make(payload[at:end]), end + 1

    return read


def _end_of_line(payload: bytes, at: int, limit: int) -> int:
    end = payload.find(b"\n", at, at + limit + 1)
    if end < 0:
        raise _Bad(f"no end of line within {limit} bytes")
    return end


def _two_lines(payload: bytes, at: int) -> tuple[Argument, int]:
    middle = _end_of_line(payload, at, _MAX_NAME_BYTES)
    end = _end_of_line(payload, middle + 1, _MAX_NAME_BYTES)
    return f"{_plain_name(payload[at:middle])} {_plain_name(payload[middle + 1 : end])}", end + 1


def _text(raw: bytes) -> str:
    if len(raw) > _MAX_TEXT_BYTES:
        raise _Bad(f"a text of {len(raw)} bytes, wanted at most {_MAX_TEXT_BYTES}")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Bad(f"{shown(raw)} is not UTF-8") from error


def _plain_name(raw: bytes) -> str:
    text = _text(raw)
    if " " in text:
        raise _Bad(f"{shown(text)} is no name")
    return text


def _escaped_text(raw: bytes) -> str:
    try:
        return raw_unicode_escape_decode(raw)[0]
    except UnicodeDecodeError as error:
        raise _Bad(f"{shown(raw)} is not escaped text") from error


def _integer(raw: bytes) -> int:
    if len(raw) > _MAX_INTEGER_BYTES:
        raise _Bad(f"an integer of {len(raw)} bytes, wanted at most {_MAX_INTEGER_BYTES}")
    return int.from_bytes(raw, "little", signed=True)


def _number(raw: bytes) -> int:
    digits = raw[1:] if raw[:1] == b"-" else raw
    if not digits.isdigit():
        raise _Bad(f"{shown(raw)} is no number")
    return int(raw)


def _number_or_bool(raw: bytes) -> int | bool:
    return {b"00": False, b"01": True}[raw] if raw in (b"00", b"01") else _number(raw)


def _long_number(raw: bytes) -> int:
    return _number(raw.removesuffix(b"L"))


_OPCODES: Mapping[int, tuple[str, _Read | None]] = {
    ord(code): entry
    for code, entry in {
        "\x80": ("PROTO", _unsigned(1)),
        "\x95": ("FRAME", _unsigned(8)),
        ".": ("STOP", _nothing),
        "(": ("MARK", _nothing),
        "N": ("NONE", _nothing),
        "\x88": ("NEWTRUE", _nothing),
        "\x89": ("NEWFALSE", _nothing),
        "I": ("INT", _line(_number_or_bool, limit=_MAX_NUMBER)),
        "J": ("BININT", _signed),
        "K": ("BININT1", _unsigned(1)),
        "M": ("BININT2", _unsigned(2)),
        "L": ("LONG", _line(_long_number, limit=_MAX_NUMBER)),
        "\x8a": ("LONG1", _counted(1, _integer)),
        "V": ("UNICODE", _line(_escaped_text)),
        "X": ("BINUNICODE", _counted(4, _text)),
        "\x8c": ("SHORT_BINUNICODE", _counted(1, _text)),
        "\x8d": ("BINUNICODE8", _counted(8, _text)),
        "B": ("BINBYTES", _counted(4, bytes)),
        "C": ("SHORT_BINBYTES", _counted(1, bytes)),
        "\x8e": ("BINBYTES8", _counted(8, bytes)),
        "]": ("EMPTY_LIST", _nothing),
        "a": ("APPEND", _nothing),
        "e": ("APPENDS", _nothing),
        "l": ("LIST", _nothing),
        ")": ("EMPTY_TUPLE", _nothing),
        "t": ("TUPLE", _nothing),
        "\x85": ("TUPLE1", _nothing),
        "\x86": ("TUPLE2", _nothing),
        "\x87": ("TUPLE3", _nothing),
        "}": ("EMPTY_DICT", _nothing),
        "d": ("DICT", _nothing),
        "s": ("SETITEM", _nothing),
        "u": ("SETITEMS", _nothing),
        "c": ("GLOBAL", _two_lines),
        "\x93": ("STACK_GLOBAL", _nothing),
        "R": ("REDUCE", _nothing),
        "\x81": ("NEWOBJ", _nothing),
        "b": ("BUILD", _nothing),
        "p": ("PUT", _line(_number, limit=_MAX_NUMBER)),
        "q": ("BINPUT", _unsigned(1)),
        "r": ("LONG_BINPUT", _unsigned(4)),
        "\x94": ("MEMOIZE", _nothing),
        "g": ("GET", _line(_number, limit=_MAX_NUMBER)),
        "h": ("BINGET", _unsigned(1)),
        "j": ("LONG_BINGET", _unsigned(4)),
    }.items()
}

_NO_OPCODE: tuple[str, None] = ("", None)

_REFUSED: Mapping[int, str] = {
    ord(code): name
    for code, name in {
        "0": "POP",
        "1": "POP_MARK",
        "2": "DUP",
        "F": "FLOAT",
        "G": "BINFLOAT",
        "\x8b": "LONG4",
        "S": "STRING",
        "T": "BINSTRING",
        "U": "SHORT_BINSTRING",
        "\x96": "BYTEARRAY8",
        "\x8f": "EMPTY_SET",
        "\x90": "ADDITEMS",
        "\x91": "FROZENSET",
        "i": "INST",
        "o": "OBJ",
        "\x92": "NEWOBJ_EX",
        "P": "PERSID (a persistent id)",
        "Q": "BINPERSID (a persistent id)",
        "\x82": "EXT1 (the extension registry)",
        "\x83": "EXT2 (the extension registry)",
        "\x84": "EXT4 (the extension registry)",
        "\x97": "NEXT_BUFFER (out-of-band data)",
        "\x98": "READONLY_BUFFER (out-of-band data)",
    }.items()
}
