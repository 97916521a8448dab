"""An xor delta on its way through its tensor.

Rules:

* The frame of a short tensor is decompressed at once, straight to where it is wanted, the one
  of a long tensor as far as a piece needs: memory grows neither with the tensor nor with what
  a blob claims.
* Decompressor and buffer are those of the tensor before: fresh memory costs more than what is
  done with it.
"""

from __future__ import annotations

import threading

import numpy as np
import zstandard

from hotswap.stream.blobs import Delta
from hotswap.stream.encodings import Bytes, check_xor_size
from hotswap.stream.errors import DeltaDamaged
from hotswap.stream.words import Words
from hotswap.stream.xor_native import is_worth_it, xor

__all__ = ["XorSteps"]

_MAX_WINDOW_BYTES = 2**27
"""What zstd takes unasked; level 1 needs 512 KiB."""

_WHOLE_BYTES = 16 * 2**20
"""What of a tensor is decompressed at once, straight to where it is wanted, for each thread."""

_NONE: Words = np.empty(0, np.intp)


class _Room:
    """A decompressor and what it writes to; of one delta at a time."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        self._buffer = np.empty(0, np.uint8)

    def buffer(self, size: int) -> Bytes:
        """``size`` bytes, not cleared."""
        if len(self._buffer) < size:
            self._buffer = np.empty(size, np.uint8)
        return self._buffer[:size]


class XorSteps:
    """One xor delta at the beginning of its tensor of ``length`` bytes.

    ``among``: how many deltas of the tensor are on their way at once, and share the room.
    ``told``: whether ``apply`` says what it changed, which takes a search.
    """

    def __init__(self, delta: Delta, length: int, *, among: int = 1, told: bool = True) -> None:
        check_xor_size(delta.blob, length, where=delta.where)
        self._delta = delta
        self._told = told
        self._native = is_worth_it(length)
        self._room = _rooms().pop() if _rooms() else _Room()
        self._reader = self._room.decompressor.stream_reader(
            # Past the frame a reader goes on: what follows it is noticed.
            delta.blob,
            read_across_frames=True,
        )
        self._ahead = np.empty(0, np.uint8)
        if length * among <= _WHOLE_BYTES:
            self._ahead = self._room.buffer(length)
            self._fill(self._ahead)

    def __repr__(self) -> str:
        return f"<XorSteps {self._delta.where}>"

    def change(self, size: int) -> Bytes:
        """The next ``size`` bytes of the change, until the next call. Raises: DeltaDamaged."""
        if len(self._ahead):
            change, self._ahead = self._ahead[:size], self._ahead[size:]
            return change
        change = _shared().buffer(size)
        self._fill(change)
        return change

    def apply(self, piece: Bytes) -> Words:
        """Turn the next ``piece`` into new bytes; the words that this changes.

        Raises: DeltaDamaged.
        """
        change = self.change(len(piece))
        if not self._told:
            np.bitwise_xor(piece, change, out=piece)
            return _NONE
        return xor(piece, change, native=self._native)

    def finish(self) -> None:
        """Raises: DeltaDamaged when the frame goes on."""
        if self._read_into(memoryview(bytearray(1))):
            raise self._damaged("goes on")
        _rooms().append(self._room)

    def _fill(self, out: Bytes) -> None:
        left = out.data
        while len(left):
            got = self._read_into(left)
            if not got:
                raise self._damaged("ends early")
            left = left[got:]

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


def _rooms() -> list[_Room]:
    """Those of this thread that no delta uses."""
    rooms: list[_Room] | None = getattr(_own, "rooms", None)
    if rooms is None:
        rooms = _own.rooms = []
    return rooms


def _shared() -> _Room:
    """The room of this thread for what is used up before another delta needs it."""
    room: _Room | None = getattr(_own, "shared", None)
    if room is None:
        room = _own.shared = _Room()
    return room


_own = threading.local()
