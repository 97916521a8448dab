"""How a tensor's change is written: ``xor`` and ``overwrite``, each one zstd frame, and ``gap``.

``xor``: new ^ old, as long as the tensor. ``overwrite``: ``count`` u4, ``count``
byte positions u4, ``count`` new bytes; all little-endian, positions ascending.
``gap``: see ``hotswap.stream.gap``.

Rule: a blob is believed only as far as the tensor's length bounds it, and every
bound is checked before memory is taken for what the blob says.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import zstandard
from numpy.typing import NDArray

from hotswap.stream.checksums import Hasher, new_hasher
from hotswap.stream.errors import DeltaDamaged, StreamError, UnknownEncoding
from hotswap.stream.frames import Bytes, frame_of, kept_decompressor
from hotswap.stream.gap import decode_gap, encode_gap, steps_in_turn
from hotswap.stream.native_hash import native_hasher

__all__ = [
    "Bytes",
    "Encoding",
    "apply",
    "check_xor_size",
    "encode",
    "encoding_named",
    "hasher_for",
    "max_compressed_bytes",
    "overwrites",
    "xor_change",
]

_POSITION_BYTES = 4
_COUNT_BYTES = 4
_MAX_POSITIONS = 2**32
_UNSAID = (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR)


class Encoding(StrEnum):
    """The values of ``delta_encoding`` in an index."""

    XOR = "xor"
    OVERWRITE = "overwrite"
    GAP = "gap"


def encoding_named(name: object, *, where: str = "") -> Encoding:
    """The encoding that an index calls ``name``. Raises: UnknownEncoding."""
    if name not in list(Encoding):
        raise UnknownEncoding(
            f"{where}delta_encoding {name!r:.80}, wanted one of {', '.join(Encoding)}; "
            "publish with one of them"
        )
    return Encoding(str(name))


def max_compressed_bytes(encoding: Encoding, length: int) -> int:
    """The longest blob that a sane compressor makes for a tensor of ``length`` bytes."""
    payload = _max_payload(encoding, length)
    return payload + payload // 128 + 1024


def apply(encoding: Encoding, blob: memoryview, tensor: Bytes, *, where: str) -> None:
    """Turn ``tensor`` from the old bytes into the new ones, in place.

    ``where`` names version and tensor in messages. Raises: DeltaDamaged, the tensor
    then as it was.
    """
    if encoding is Encoding.XOR:
        _apply_xor(blob, tensor, where)
    elif encoding is Encoding.GAP:
        _apply_gap(blob, tensor, where)
    else:
        positions, values = overwrites(blob, len(tensor), where=where)
        tensor[positions] = values


def overwrites(blob: memoryview, length: int, *, where: str) -> tuple[NDArray[np.uint32], Bytes]:
    """Ascending byte positions of an overwrite blob, and the new bytes there.

    Raises: DeltaDamaged, also for a position that a tensor of ``length`` bytes lacks.
    """
    payload = _decompress(blob, at_most=_max_payload(Encoding.OVERWRITE, length), where=where)
    count = int.from_bytes(payload[:_COUNT_BYTES], "little")
    wanted = _COUNT_BYTES + (_POSITION_BYTES + 1) * count
    if len(payload) != wanted:
        raise DeltaDamaged(
            f"{where}: an overwrite delta of {len(payload)} bytes that says {count} positions, "
            f"wanted {wanted} bytes for them; publish it again"
        )
    positions = np.frombuffer(payload, "<u4", count, _COUNT_BYTES)
    values = np.frombuffer(payload, np.uint8, count, _COUNT_BYTES + _POSITION_BYTES * count)
    if np.any(positions[1:] <= positions[:-1]):
        raise DeltaDamaged(
            f"{where}: positions of an overwrite delta are not ascending, or one is there "
            "twice; publish it again"
        )
    if count and positions[-1] >= length:
        raise DeltaDamaged(
            f"{where}: an overwrite delta writes at byte {positions[-1]}, but the tensor has "
            f"{length}; publish it again"
        )
    return positions, values


def check_xor_size(blob: memoryview, length: int, *, where: str) -> None:
    """Raises: DeltaDamaged when an xor blob says that it is not of ``length`` bytes.

    One that says nothing passes.
    """
    try:
        size = zstandard.get_frame_parameters(blob).content_size
    except zstandard.ZstdError as error:
        raise DeltaDamaged(
            f"{where}: not one zstd frame of {length} bytes ({error}); publish it again"
        ) from error
    if size not in _UNSAID and size != length:
        raise DeltaDamaged(
            f"{where}: an xor delta of {size} bytes, but the tensor has {length}; publish it again"
        )


def encode(
    encoding: Encoding,
    old: Bytes,
    new: Bytes,
    *,
    width: int = 1,
    hasher: Hasher | None = None,
) -> bytes | None:
    """The blob that turns ``old`` into ``new``; None when nothing changed.

    ``width``: bytes an element, for ``gap``. ``hasher`` takes every byte of ``new``, in order.

    Raises: StreamError for another length, or a tensor too long for ``overwrite``.
    """
    if len(old) != len(new):
        raise StreamError(
            f"a tensor went from {len(old)} bytes to {len(new)}, wanted the same length; "
            "publish a full version"
        )
    if encoding is Encoding.GAP:
        return encode_gap(old, new, width if len(new) % width == 0 else 1, hasher=hasher)
    if hasher is not None:
        hasher.update(new.data)
    if encoding is Encoding.XOR:
        change = np.bitwise_xor(old, new)
        payload = change.data if change.any() else None
    else:
        payload = _overwrite_payload(old, new)
    if payload is None:
        return None
    return frame_of(payload)


def hasher_for(encoding: Encoding, checksum_format: str) -> Hasher:
    """What takes the checksum beside ``encode``. Raises: UnknownEncoding."""
    make = native_hasher if encoding is Encoding.GAP else new_hasher
    return make(checksum_format)


def xor_change(blob: memoryview, length: int, *, where: str) -> Bytes:
    """All of an xor ``blob`` for a tensor of ``length`` bytes. Raises: DeltaDamaged."""
    payload = _decompress(blob, at_most=length, where=where)
    if len(payload) != length:
        raise DeltaDamaged(
            f"{where}: an xor delta of {len(payload)} bytes, but the tensor has {length}; "
            "publish it again"
        )
    return np.frombuffer(payload, np.uint8)


def _max_payload(encoding: Encoding, length: int) -> int:
    if encoding is not Encoding.OVERWRITE:
        return length
    return _COUNT_BYTES + (_POSITION_BYTES + 1) * length


def _decompress(blob: memoryview, *, at_most: int, where: str) -> bytes:
    try:
        size = zstandard.get_frame_parameters(blob).content_size
        # The library takes memory for the size that a frame declares, whatever it may be.
        if size not in _UNSAID:
            _check_size(size, at_most, where)
        payload = kept_decompressor().decompress(
            blob, max_output_size=max(at_most, 1), allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise DeltaDamaged(
            f"{where}: not one zstd frame of at most {at_most} bytes ({error}); publish it again"
        ) from error
    _check_size(len(payload), at_most, where)
    return payload


def _check_size(size: int, at_most: int, where: str) -> None:
    if size > at_most:
        raise DeltaDamaged(
            f"{where}: decompresses to {size} bytes, wanted at most {at_most} for a tensor of "
            "this length; it belongs to another tensor, or is hostile"
        )


def _apply_xor(blob: memoryview, tensor: Bytes, where: str) -> None:
    np.bitwise_xor(tensor, xor_change(blob, len(tensor), where=where), out=tensor)


def _apply_gap(blob: memoryview, tensor: Bytes, where: str) -> None:
    change = decode_gap(blob, len(tensor), where=where)
    if isinstance(change, memoryview):
        _apply_xor(change, tensor, where)
    else:
        for steps in steps_in_turn([change]):
            steps.apply(tensor)


def _overwrite_payload(old: Bytes, new: Bytes) -> memoryview | None:
    if len(new) > _MAX_POSITIONS:
        raise StreamError(
            f"a tensor of {len(new)} bytes is too long for overwrite, whose positions have 32 "
            "bits; publish with xor"
        )
    positions = np.flatnonzero(old != new)
    if not positions.size:
        return None
    count = np.array([positions.size], "<u4")
    parts = (count.view(np.uint8), positions.astype("<u4").view(np.uint8), new[positions])
    return np.concatenate(parts).data
