"""The bytes of a ``gap`` blob: a head that describes itself, then a frame or streams.

``docs/reference/stream-format.md`` has the layout for who writes another implementation.

Rule: every number in a blob is checked against the tensor that it is for before memory is
taken for what it says, and all of them before a byte of the tensor changes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotswap.native import compiled, has_native
from hotswap.stream.errors import DeltaDamaged
from hotswap.stream.frames import Bytes, packed, unpacked

__all__ = [
    "FORMAT",
    "HEAD_BYTES",
    "WIDTHS",
    "Dense",
    "GapHead",
    "Sparse",
    "Symbols",
    "Values",
    "count_gaps",
    "dense_blob",
    "escape_of",
    "head_of",
    "join_two",
    "parse_sparse",
    "sparse_blob",
    "unpacked_bytes",
]

FORMAT = 1
"""The number of this layout; a blob with another one is refused."""

WIDTHS = (1, 2, 4, 8)
"""How many bytes an element can have."""

Symbols = NDArray[np.uint8] | NDArray[np.uint16]
"""Gaps as they are written: ``escape_of`` their width is 'that many, and more to come'."""

Values = NDArray[Any]
"""Unsigned, as wide as the elements."""

_MANY = 4096
"""So many symbols numpy counts as fast as a compiled loop is called."""

_MAGIC = b"hsg"
_HEAD = struct.Struct("<3sBBBBBQQ")
_U8 = struct.Struct("<Q")
_DENSE, _SPARSE = 0, 1
_GAP_WIDTHS = (1, 2)

HEAD_BYTES = _HEAD.size
"""How much longer a dense blob is than the same change as ``xor``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapHead:
    """What a blob says first. ``gap_width`` is 0 for one that is dense."""

    width: int
    gap_width: int
    elements: int
    changed: int

    @property
    def is_dense(self) -> bool:
        """Whether an xor frame follows, not gaps and values."""
        return self.gap_width == 0


@dataclass(frozen=True, kw_only=True)
class Sparse:
    """Where a tensor changes and how: decoded, and known to lie within the tensor.

    ``values[i]`` is new XOR old of changed element ``i``, unsigned and of the elements' width.
    """

    head: GapHead
    symbols: Symbols
    values: Values

    @property
    def planes(self) -> tuple[Bytes, ...]:
        """As they are written: the lowest byte of every value, then the next one."""
        octets = self.values.view(np.uint8)
        return tuple(
            np.ascontiguousarray(octets[byte :: self.head.width]) for byte in range(self.head.width)
        )

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return self.symbols.nbytes + self.values.nbytes

    @cached_property
    def places(self) -> tuple[int, int, int, int]:
        """Where the symbols begin and how many bytes they are; the same of the values."""
        symbols, values = self.symbols, self.values
        return _address(symbols), symbols.nbytes, _address(values), values.nbytes


@dataclass(frozen=True)
class Dense:
    """How a short tensor changes: new XOR old of every byte of it, decompressed."""

    change: Bytes

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return self.change.nbytes

    @cached_property
    def places(self) -> tuple[int, int, int, int]:
        """As of ``Sparse``: no symbols, and a value for each byte."""
        return 0, 0, _address(self.change), self.change.nbytes


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def escape_of(gap_width: int) -> int:
    """The symbol that advances by its own value and ends no gap."""
    return int((1 << 8 * gap_width) - 1)


def dense_blob(frame: bytes, *, width: int, elements: int, changed: int) -> bytes:
    """A blob that holds the whole xor of a tensor as a zstd ``frame``."""
    return _HEAD.pack(_MAGIC, FORMAT, _DENSE, width, 0, 0, elements, changed) + frame


def sparse_blob(symbols: Symbols, planes: Sequence[Bytes], *, elements: int) -> bytes:
    """A blob of gaps and values, each stream stored the shorter way."""
    gap_width, width = symbols.itemsize, len(planes)
    streams = [packed(stream) for stream in (*_planes_of(symbols), *planes)]
    head = _HEAD.pack(_MAGIC, FORMAT, _SPARSE, width, gap_width, 0, elements, len(planes[0]))
    sizes = (_U8.pack(2 * len(stored) + compressed) for stored, compressed in streams)
    return b"".join((head, _U8.pack(len(symbols)), *sizes, *(stored for stored, _ in streams)))


def head_of(blob: memoryview, length: int, *, where: str) -> GapHead:
    """The head of a blob for a tensor of ``length`` bytes. Raises: DeltaDamaged."""
    if len(blob) < HEAD_BYTES:
        raise _damaged(where, f"{len(blob)} bytes", f"at least {HEAD_BYTES}")
    magic, number, kind, width, gap_width, zero, elements, changed = _HEAD.unpack_from(blob)
    if magic != _MAGIC or number != FORMAT:
        seen = f"bytes that begin with {bytes(blob[:4]).hex()}"
        raise _damaged(where, seen, f"{_MAGIC.hex()}{FORMAT:02x}, which is format {FORMAT}")
    allowed = (0,) if kind == _DENSE else _GAP_WIDTHS
    if kind not in (_DENSE, _SPARSE) or width not in WIDTHS or gap_width not in allowed or zero:
        seen = f"kind {kind}, elements of {width} bytes, gaps of {gap_width}, then {zero}"
        raise _damaged(where, seen, "what format 1 knows")
    if elements * width != length:
        raise _damaged(where, f"{elements} elements of {width} bytes", f"{length} bytes of them")
    if changed > elements:
        raise _damaged(
            where, f"{changed} changed elements", f"at most the {elements} of the tensor"
        )
    return GapHead(width=width, gap_width=gap_width, elements=elements, changed=changed)


def unpacked_bytes(blob: memoryview) -> int:
    """How long the streams of a blob are together by what it says, whether or not that can be; 0
    for one without streams."""
    if len(blob) < HEAD_BYTES + _U8.size or bytes(blob[: len(_MAGIC)]) != _MAGIC:
        return 0
    _, _, kind, width, gap_width, _, _, changed = _HEAD.unpack_from(blob)
    (symbols,) = _U8.unpack_from(blob, HEAD_BYTES)
    return int(symbols * gap_width + changed * width) if kind == _SPARSE else 0


def parse_sparse(blob: memoryview, head: GapHead, *, where: str) -> Sparse:
    """Gaps and values after ``head``, within bounds. Raises: DeltaDamaged."""
    count = head.gap_width + head.width
    begin = HEAD_BYTES + _U8.size * (1 + count)
    if len(blob) < begin:
        raise _damaged(where, f"{len(blob)} bytes", f"{begin} before the first stream")
    symbols, *sizes = struct.unpack_from(f"<{1 + count}Q", blob, HEAD_BYTES)
    escape = escape_of(head.gap_width)
    room = (head.elements - head.changed) // escape
    if not head.changed <= symbols <= head.changed + room or (symbols and not head.changed):
        wanted = f"from {head.changed} to {head.changed + room}" if head.changed else "none"
        raise _damaged(where, f"{symbols} gap bytes or pairs", wanted)
    if begin + sum(size >> 1 for size in sizes) != len(blob):
        raise _damaged(where, f"streams of {[size >> 1 for size in sizes]} bytes", "all the rest")
    lengths = [symbols] * head.gap_width + [head.changed] * head.width
    streams = list(_unpacked(blob, begin, sizes, lengths, where))
    found = _joined(streams[: head.gap_width])
    _check_gaps(found, head, where)
    return Sparse(head=head, symbols=found, values=_joined(streams[head.gap_width :]))


def _unpacked(
    blob: memoryview, begin: int, sizes: Sequence[int], lengths: Sequence[int], where: str
) -> Iterator[Bytes]:
    for number, (size, length) in enumerate(zip(sizes, lengths, strict=True)):
        stored = blob[begin : begin + (size >> 1)]
        begin += size >> 1
        what = f"{where}: stream {number} of a gap delta"
        yield unpacked(stored, length, compressed=bool(size & 1), where=what)


def _check_gaps(symbols: Symbols, head: GapHead, where: str) -> None:
    ends, past = _ends_and_sum(symbols, escape_of(head.gap_width))
    past += head.changed
    if ends != head.changed or (ends and symbols[-1] == escape_of(head.gap_width)):
        raise _damaged(where, f"{ends} gaps, or a last one without end", f"{head.changed}, ended")
    if past > head.elements:
        raise _damaged(where, f"gaps up to element {past}", f"at most {head.elements}")


def _ends_and_sum(symbols: Symbols, escape: int) -> tuple[int, int]:
    """How many ``symbols`` end a gap, and how far all of them lead."""
    if len(symbols) >= _MANY and has_native():
        ends, past = compiled(count_gaps, brief=True)(_fixed(symbols), escape)
        return int(ends), int(past)
    return int(np.count_nonzero(symbols != escape)), int(symbols.sum(dtype=np.int64))


def count_gaps(symbols: Symbols, escape: int) -> tuple[np.int64, np.int64]:
    """As ``_ends_and_sum``, for numba: numpy goes through them three times."""
    ends, past = np.int64(0), np.int64(0)
    for symbol in symbols:
        ends += symbol != escape
        past += np.int64(symbol)
    return ends, past


def _planes_of(symbols: Symbols) -> Iterator[Bytes]:
    octets = symbols.astype(f"<u{symbols.itemsize}").view(np.uint8)
    for place in range(symbols.itemsize):
        yield np.ascontiguousarray(octets[place :: symbols.itemsize])


def _joined(planes: Sequence[Bytes]) -> Values:
    """Numbers of which ``planes`` have a byte each, the lowest first."""
    if len(planes) == 1:
        return planes[0]
    if len(planes) == 2 and len(planes[0]) >= _MANY and has_native():
        return _joined_two(*planes)
    joined: Values = planes[-1].astype(f"<u{len(planes)}")
    for plane in reversed(planes[:-1]):
        joined <<= 8
        joined |= plane
    return joined


def _joined_two(low: Bytes, high: Bytes) -> Values:
    joined = np.empty(len(low), "<u2")
    compiled(join_two, brief=True)(_fixed(low), _fixed(high), joined)
    return joined


def join_two(low: Bytes, high: Bytes, joined: Values) -> None:
    """For numba: each step of numpy would give the interpreter's lock away."""
    for at in range(len(joined)):
        joined[at] = low[at] | np.uint16(high[at]) << np.uint16(8)


def _fixed(array: Any) -> Any:
    """``array`` as one that is not written to: each kind of array is compiled for anew."""
    fixed = array.view()
    fixed.flags.writeable = False
    return fixed


def _damaged(where: str, seen: str, wanted: str) -> DeltaDamaged:
    return DeltaDamaged(f"{where}: a gap delta with {seen}, wanted {wanted}; publish it again")
