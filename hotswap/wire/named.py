"""The shared memory that a payload names, so that the references that came with it go back.

A sender counts one reference for each handle that it writes; who unpickles one gives it back.
"""

from __future__ import annotations

import binascii
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from hotswap.wire.names import Known
from hotswap.wire.records import Call, Fields, Items, Value
from hotswap.wire.refused import PayloadRefused
from hotswap.wire.sent import SharedStorage
from hotswap.wire.tensors import storage_of

__all__ = ["handles_in", "names_in", "names_in_body"]

_PIECE_CHARACTERS = 2**20  # a multiple of four
_OVERLAP_BYTES = 256  # more than a match has
_NESTED_CHARACTERS = 48 * 2**20  # more than a payload that is read may have

# In a handle the socket of the sender's torch_shm_manager stands in front of the name, with some
# opcodes in between. The counters of device memory have such names too, and no such socket.
_NAMED = re.compile(
    rb"/manager\.sock.{1,64}?/(torch_[0-9]{1,20}_[0-9]{1,20}(?:_[0-9]{1,20})?)(?=[^0-9_])",
    re.DOTALL,
)
_TWICE_TEXT = b"Z0F"  # how the base64 of the base64 of a pickle begins

# What a handle stands in is longer. JSON may spell a character as an escape.
_LEAST_CHARACTERS = 128
_TEXT = re.compile(
    # Each is looked at once.
    rb"(?<![A-Za-z0-9+/_\-\\])[A-Za-z0-9+/_\-\\]{%d,}" % _LEAST_CHARACTERS
)
_ESCAPED = re.compile(rb"\\(?:([/nrt])|u00([0-9a-fA-F]{2}))")
_SPACE = b" \t\r\n"
_LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_JUNK = bytes(one for one in range(256) if one not in _LETTERS)
_STANDARD = bytes.maketrans(b"-_", b"+/")  # of the spelling that is made for URLs


def handles_in(value: Value) -> Counter[str]:
    """How many handles ``value`` has of each segment, whatever stands around them.

    Each record is looked at once, however often the payload names it: so does who unpickles.
    """
    found = Counter[str]()
    seen = set[Items | Fields | Call]()
    waiting = [value]
    while waiting:
        record = waiting.pop()
        if not isinstance(record, Items | Fields | Call) or record in seen:
            continue
        seen.add(record)
        if isinstance(record, Items):
            waiting.extend(record.values)
        elif isinstance(record, Fields):
            waiting.extend(record.values.values())
        else:
            waiting.append(record.arguments)
            if record.fields is not None:
                waiting.append(record.fields)
            if record.name is Known.REBUILD_STORAGE_FILENAME:
                with suppress(PayloadRefused):
                    storage = storage_of(record, "a handle")
                    if isinstance(storage, SharedStorage):
                        found[storage.name] += 1
    return found


def names_in(texts: Iterable[str]) -> Counter[str]:
    """How many handles of each segment stand in payloads that cannot be read, or were not.

    They are searched as bytes and never interpreted: cut off, in the wrong format, longer than
    is allowed, or with something else among the tensors. ``texts`` are base64, once or twice, or
    nearly: with other characters in between, or spelt for URLs. Takes as much memory again as the
    longest of them has, and a half.
    """
    return _counted(text.encode("ascii", "replace") for text in texts)


def names_in_body(body: bytes | bytearray) -> Counter[str]:
    """The same, of a request that is refused: no JSON, cut off, or with other fields than wanted.

    Every text in it that may be base64 is searched, wherever it stands.
    """
    if b"\0" in body[:4]:  # UTF-16, or UTF-32, of letters as these
        body = body.translate(None, b"\0")
    return _counted(_plain(text[0]) for text in _TEXT.finditer(body))


def _plain(text: bytes) -> bytes:
    return _ESCAPED.sub(_unescaped, text) if b"\\" in text else text


def _unescaped(escape: re.Match[bytes]) -> bytes:
    if escape[2]:
        return bytes.fromhex(escape[2].decode("ascii"))
    return b"/" if escape[1] == b"/" else b""


def _counted(texts: Iterable[bytes]) -> Counter[str]:
    found = Counter[str]()
    for text in texts:
        plain = text.translate(_STANDARD, _SPACE).rstrip(b"=")
        length = len(plain)
        plain = plain.translate(None, _JUNK)
        found += _names_at_any_place(plain, torn=len(plain) != length)
        found += _names_within(plain)
    return found


def _names_at_any_place(text: bytes, *, torn: bool) -> Counter[str]:
    """Where a character more or less stands in front, four others make a group. A handle can be
    read at one place of the four alone."""
    found = _names_in(text)
    if torn or not found:
        for start in (1, 2, 3):
            found += _names_in(text, start)
    return found


def _names_in(text: bytes, first: int = 0) -> Counter[str]:
    found = Counter[str]()
    kept = b""
    for start in range(first, len(text), _PIECE_CHARACTERS):
        kept += _decoded(text[start : start + _PIECE_CHARACTERS])
        end = 0
        for match in _NAMED.finditer(kept):
            found[match[1].decode("ascii")] += 1
            end = match.end()
        kept = kept[max(end, len(kept) - _OVERLAP_BYTES) :]
    return found


def _names_within(text: bytes) -> Counter[str]:
    """Those in base64 that stands in what ``text`` is the base64 of: a part for a rank, or all."""
    found = Counter[str]()
    if len(text) <= _NESTED_CHARACTERS or text.startswith(_TWICE_TEXT):
        for inner in _TEXT.finditer(_decoded(text)):
            plain = inner[0].translate(_STANDARD, _JUNK)
            found += _names_at_any_place(plain, torn=False)
    return found


def _decoded(text: bytes) -> bytes:
    # A text that was cut off is decoded as far as it goes: a lone character says nothing.
    return binascii.a2b_base64(text[: len(text) - (len(text) % 4 == 1)] + b"==")
