"""The header of a safetensors file, read for bytes alone: no dtype is looked up.

A stream's tensors are spans of bytes, and whatever dtype a checkpoint has is carried
on. For loading weights ``hotswap.weights.safetensors_header`` is stricter.

Source of the format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from hotswap.errors import UpdateRejected
from hotswap.stream.errors import VersionMalformed
from hotswap.weights.strict_json import parse_object

__all__ = ["LENGTH_BYTES", "MAX_HEADER_BYTES", "Header", "Span", "header_room", "parse_header"]

LENGTH_BYTES = 8
"""The little-endian length of the header's JSON comes first."""

MAX_HEADER_BYTES = 100 * 2**20
"""What the format allows a header."""

_SHORT_BYTES = 2**20
"""Headers up to here are parsed once, as long as they are looked at now and then."""

_MAX_NATURAL = 2**63 - 1
_ENTRY_KEYS = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One tensor: its declared dtype and shape, and where its bytes lie in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Every tensor by name, in the order of their bytes; together they fill the file.

    ``data_offset`` is where the first tensor's bytes begin, ``file_bytes`` how long the
    whole file has to be.
    """

    spans: Mapping[str, Span]
    metadata: Mapping[str, str]
    data_offset: int
    file_bytes: int


def header_room(names: Collection[str]) -> int:
    """How many bytes of JSON a header about ``names`` can need, with room to spare.

    A header is parsed into objects many times its size: it is bounded by what it can
    be about, not only by the 100 MiB of the format.
    """
    # A name appears twice, each character as six at most (\\u00e9), or four bytes of UTF-8.
    needed = 64 * 2**10 + sum(12 * len(name) + 1024 for name in names)
    return min(needed, MAX_HEADER_BYTES)


def parse_header(text: bytes, *, source: str) -> Header:
    """Parse the JSON ``text`` of a header. ``source`` names the file in messages.

    Raises: UpdateRejected for anything but JSON, VersionMalformed for the rest.
    """
    if len(text) > _SHORT_BYTES:
        return _parsed(text, source)
    try:
        return _parsed_before(text)
    except UpdateRejected:
        return _parsed(text, source)  # which says where


@lru_cache(maxsize=32)
def _parsed_before(text: bytes) -> Header:
    """Of what lies in one pull's way each header is looked at several times, or with every pull;
    the one of a version in two places."""
    return _parsed(text, "")


def _parsed(text: bytes, source: str) -> Header:
    entries = parse_object(text, source=f"{source} (safetensors header)")
    metadata = _metadata(entries.pop("__metadata__", {}), source)
    start = LENGTH_BYTES + len(text)
    spans = [
        (name, _span(entry, start, f"{source}: tensor {name!r:.200}"))
        for name, entry in entries.items()
    ]
    # Tensors without bytes share their offset with the next one.
    spans.sort(key=lambda item: (item[1].offset, item[1].length))
    end = start
    for name, span in spans:
        if span.offset != end:
            kind = "overlaps the tensor before it" if span.offset < end else "leaves a hole"
            raise VersionMalformed(
                f"{source}: tensor {name!r:.200} begins at byte {span.offset} and {kind}, wanted "
                f"{end}; write the file again"
            )
        end += span.length
    return Header(spans=dict(spans), metadata=metadata, data_offset=start, file_bytes=end)


def _metadata(metadata: object, source: str) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise VersionMalformed(
            f"{source}: __metadata__ is {metadata!r:.80}, wanted a map of strings to strings; "
            "write the file again"
        )
    return metadata


def _span(entry: object, start: int, where: str) -> Span:
    if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
        raise VersionMalformed(f"{where}: header entry wants exactly {sorted(_ENTRY_KEYS)}")
    dtype, shape = entry["dtype"], _naturals(entry["shape"])
    offsets = _naturals(entry["data_offsets"])
    if not isinstance(dtype, str) or shape is None:
        raise VersionMalformed(
            f"{where}: dtype {dtype!r:.40}, shape {entry['shape']!r:.80}; wanted a name and a "
            "list of integers from 0 on"
        )
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise VersionMalformed(
            f"{where}: data_offsets {entry['data_offsets']!r:.80}, wanted [begin, end] in bytes"
        )
    begin, end = offsets
    return Span(dtype=dtype, shape=shape, offset=start + begin, length=end - begin)


def _naturals(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    # JSON's true is an int to Python.
    if any(type(item) is not int or not 0 <= item <= _MAX_NATURAL for item in value):
        return None
    return tuple(value)
