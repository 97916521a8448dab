"""Streams of bytes that are stored as they are, or as one zstd frame where that is smaller.

Rule: how long a stream is when it is unpacked is known beforehand, and a frame that says
otherwise, or nothing, is refused before memory is taken for it.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray

from hotswap.stream.errors import DeltaDamaged

__all__ = ["Bytes", "frame_of", "kept_decompressor", "packed", "unpacked"]

Bytes: TypeAlias = NDArray[np.uint8]
"""A tensor's bytes, one-dimensional."""

_LEVEL = 1
"""The level of zstd at which everything in a stream is compressed."""


def frame_of(raw: bytes | memoryview) -> bytes:
    """``raw`` as one zstd frame."""
    compressor: zstandard.ZstdCompressor | None = getattr(_own, "compressor", None)
    if compressor is None:
        # One for each thread: to make one costs as much as to compress a small stream.
        compressor = _own.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    frame: bytes = compressor.compress(raw)
    return frame


def packed(raw: Bytes) -> tuple[bytes, bool]:
    """What to store for ``raw``, and whether that is a zstd frame."""
    frame = frame_of(raw.data)
    return (frame, True) if len(frame) < len(raw) else (raw.tobytes(), False)


def unpacked(stored: memoryview, size: int, *, compressed: bool, where: str) -> Bytes:
    """The ``size`` bytes that ``stored`` stands for; never to be written to.

    ``where`` names version, tensor and stream in messages. Raises: DeltaDamaged.
    """
    if not compressed:
        _check(len(stored), size, where)
        return np.frombuffer(stored.toreadonly(), np.uint8)
    try:
        # The library takes memory for the size that a frame declares, whatever it may be.
        _check(zstandard.get_frame_parameters(stored).content_size, size, where)
        raw = kept_decompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DeltaDamaged(
            f"{where}: not one zstd frame of {size} bytes ({error}); publish it again"
        ) from error
    _check(len(raw), size, where)
    return np.frombuffer(raw, np.uint8)


def kept_decompressor() -> zstandard.ZstdDecompressor:
    """This thread's own: to make one takes longer than to unpack a short stream."""
    kept: zstandard.ZstdDecompressor | None = getattr(_own, "decompressor", None)
    if kept is None:
        kept = _own.decompressor = zstandard.ZstdDecompressor()
    return kept


_own = threading.local()


def _check(seen: int, size: int, where: str) -> None:
    if seen != size:
        raise DeltaDamaged(f"{where}: unpacks to {seen} bytes, wanted {size}; publish it again")
