"""Applying a delta a piece at a time: what is in the processor's cache stays there.

Rule: pieces come in order and cover the tensor. An xor delta is decompressed as far as a
piece needs, so that memory does not grow with the tensor, nor with what a blob claims.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
import zstandard

from hotswap.stream.blobs import Delta
from hotswap.stream.encodings import Bytes, Encoding, check_xor_size, overwrites
from hotswap.stream.errors import DeltaDamaged
from hotswap.stream.gap import decode_gap, steps_of

__all__ = ["Piecewise", "piecewise"]

_MAX_WINDOW_BYTES = 2**27
"""What zstd takes unasked; level 1 needs 512 KiB."""


class Piecewise(Protocol):
    """One delta, on its way through its tensor."""

    def apply(self, piece: Bytes) -> None:
        """Turn the next ``piece`` from old bytes into new ones. Raises: DeltaDamaged."""
        ...

    def finish(self) -> None:
        """The tensor is through. Raises: DeltaDamaged when the delta is not."""
        ...


def piecewise(delta: Delta, length: int) -> Piecewise:
    """``delta`` at the beginning of its tensor of ``length`` bytes. Raises: DeltaDamaged."""
    if delta.encoding is Encoding.XOR:
        return _Xor(delta, length)
    if delta.encoding is Encoding.GAP:
        change = decode_gap(delta.blob, length, where=delta.where)
        if isinstance(change, memoryview):
            return _Xor(replace(delta, blob=change), length)
        return steps_of(change)
    return _Overwrite(delta, length)


class _Xor:
    def __init__(self, delta: Delta, length: int) -> None:
        check_xor_size(delta.blob, length, where=delta.where)
        self._delta = delta
        self._change = np.empty(0, np.uint8)
        self._reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(
            # Past the frame a reader goes on: what follows it is noticed.
            delta.blob,
            read_across_frames=True,
        )

    def apply(self, piece: Bytes) -> None:
        if len(self._change) < len(piece):
            # Kept from piece to piece: fresh memory costs more than what is done with it.
            self._change = np.empty(len(piece), np.uint8)
        change = self._change[: len(piece)]
        left = change.data
        while len(left):
            got = self._read_into(left)
            if not got:
                raise self._damaged("ends early")
            left = left[got:]
        np.bitwise_xor(piece, change, out=piece)

    def finish(self) -> None:
        if self._read_into(memoryview(bytearray(1))):
            raise self._damaged("goes on")

    def _read_into(self, out: memoryview) -> int:
        try:
            return self._reader.readinto(out)
        except zstandard.ZstdError as error:
            raise self._damaged(f"is no zstd frame ({error})") from error

    def _damaged(self, how: str) -> DeltaDamaged:
        return DeltaDamaged(
            f"{self._delta.where}: the xor delta {how}, wanted one as long as the tensor; publish "
            "it again"
        )


class _Overwrite:
    def __init__(self, delta: Delta, length: int) -> None:
        positions, self._values = overwrites(delta.blob, length, where=delta.where)
        self._positions = positions.astype(np.intp)  # else each search converts all of them
        self._at = 0

    def apply(self, piece: Bytes) -> None:
        end = self._at + len(piece)
        first, last = np.searchsorted(self._positions, (self._at, end))
        piece[self._positions[first:last] - self._at] = self._values[first:last]
        self._at = end

    def finish(self) -> None:
        """Positions were checked against the length at the beginning."""
