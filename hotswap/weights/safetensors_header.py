"""The safetensors header, read strictly: the format is 8 bytes little-endian header
length, that many bytes of JSON, then the tensors' bytes without a gap.

Rules:

* Nothing is allocated by a number in the file before that number is checked.
* The tensors cover the rest of the file exactly: no hole, no overlap, no tail.
* A file without tensors is an error: nothing loaded is never a success.

Source of the format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hotswap.errors import UpdateRejected
from hotswap.types import TensorSpec
from hotswap.weights.folder import OpenFile
from hotswap.weights.incomplete import incomplete
from hotswap.weights.strict_json import parse_object

__all__ = ["DTYPES", "LENGTH_BYTES", "Extent", "parse_header", "read_header"]

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Every dtype of the format that torch can hold one element at a time."""

LENGTH_BYTES = 8
"""In front of the header: how long it is, little-endian."""

_MAX_HEADER_BYTES = 100 * 2**20
_ENTRY_KEYS = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """One tensor and the offset of its first byte in the file."""

    spec: TensorSpec
    offset: int


def read_header(file: OpenFile) -> tuple[Extent, ...]:
    """Every tensor of ``file`` in the order of its bytes. Reads the header only.

    Raises: UpdateRejected naming the file, and the tensor where it is one's fault.
    """
    start, text = _header_bytes(file)
    return parse_header(text, source=file.name, room=file.size_bytes - start)


def parse_header(text: bytes, *, source: str, room: int | None) -> tuple[Extent, ...]:
    """Every tensor that the header ``text`` names, in the order of its bytes.

    ``source`` is what messages call it; ``room`` are the bytes behind the header, None where
    nobody knows yet. Raises: UpdateRejected.
    """
    if not text.startswith(b"{"):
        raise UpdateRejected(
            f"{source}: header starts with {text[:8]!r}, wanted b'{{'; no safetensors file"
        )
    header = parse_object(text, source=f"{source} (safetensors header)")
    _check_metadata(source, header.pop("__metadata__", None))
    if not header:
        raise UpdateRejected(f"{source}: holds 0 tensors, wanted at least one")
    spans = [_span(source, name, entry) for name, entry in header.items()]
    spans.sort(key=lambda span: span[1:])
    _check_cover(source, spans, spans[-1][2] if room is None else room)
    start = LENGTH_BYTES + len(text)
    return tuple(Extent(spec=spec, offset=start + begin) for spec, begin, _ in spans)


def _check_metadata(source: str, metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise UpdateRejected(
            f"{source}: __metadata__ is {metadata!r:.80}, wanted a map of strings to strings; "
            "write the file again"
        )


def _header_bytes(file: OpenFile) -> tuple[int, bytes]:
    try:
        if file.size_bytes < LENGTH_BYTES:
            raise incomplete(
                f"{file.name}: {file.size_bytes} bytes is no safetensors file: it is truncated"
            )
        length = int.from_bytes(file.read_bytes(0, LENGTH_BYTES), "little")
        room = file.size_bytes - LENGTH_BYTES
        if length > min(room, _MAX_HEADER_BYTES):
            seen = f"{file.name}: says that its header has {length} bytes; the file has {room}"
            if length > _MAX_HEADER_BYTES:
                raise UpdateRejected(
                    f"{seen} after the length, and {_MAX_HEADER_BYTES} are allowed; it is "
                    "truncated or no safetensors file"
                )
            raise incomplete(f"{seen} after the length: it is truncated or no safetensors file")
        text = file.read_bytes(LENGTH_BYTES, length)
    except OSError as error:
        raise UpdateRejected(f"{file.name}: header cannot be read ({error})") from error
    return LENGTH_BYTES + length, text


def _span(file_name: str, name: str, entry: object) -> tuple[TensorSpec, int, int]:
    where = f"{file_name}: tensor {name!r}"
    if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
        raise UpdateRejected(f"{where}: header entry wants exactly {sorted(_ENTRY_KEYS)}")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise UpdateRejected(
            f"{where}: dtype {entry['dtype']!r} is not supported; wanted one of {', '.join(DTYPES)}"
        )
    shape = _naturals(entry["shape"])
    if shape is None:
        raise UpdateRejected(
            f"{where}: shape {entry['shape']!r}, wanted a list of integers from 0 to 2^63 - 1"
        )
    offsets = _naturals(entry["data_offsets"])
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise UpdateRejected(
            f"{where}: data_offsets {entry['data_offsets']!r}, wanted [begin, end] in bytes"
        )
    spec = TensorSpec(name=name, dtype=dtype, shape=shape)
    begin, end = offsets
    if end - begin != spec.size_bytes or math.prod(filter(None, shape)) > _MAX_NATURAL:
        raise UpdateRejected(
            f"{where}: {end - begin} bytes at [{begin}, {end}], but {spec} has {spec.size_bytes}"
        )
    return spec, begin, end


_MAX_NATURAL = 2**63 - 1


def _naturals(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    # JSON's true is an int to Python, and torch's sizes are signed 64-bit.
    if any(type(item) is not int or not 0 <= item <= _MAX_NATURAL for item in value):
        return None
    return tuple(value)


def _check_cover(source: str, spans: list[tuple[TensorSpec, int, int]], room: int) -> None:
    covered = 0
    for spec, begin, end in spans:
        if begin != covered:
            kind = "overlaps the tensor before it" if begin < covered else "leaves a hole before it"
            raise UpdateRejected(
                f"{source}: tensor {spec.name!r} at [{begin}, {end}] {kind}, "
                f"wanted it to begin at {covered}"
            )
        if end > room:
            raise incomplete(
                f"{source}: tensor {spec.name!r} ends at byte {end} of the data, but the file "
                f"has {room}: it is truncated"
            )
        covered = end
    if covered != room:
        raise UpdateRejected(
            f"{source}: {room - covered} bytes after the last tensor belong to none; "
            "write the file again"
        )
