"""Memory for tensors that are done together: for all of them, or for a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hotswap.stream.encodings import Bytes
from hotswap.stream.fused import PASSING_BYTES
from hotswap.stream.journal import chunk_room
from hotswap.stream.one_tensor import OneTensor
from hotswap.stream.words import Words

__all__ = ["ROOM_BYTES", "Room"]

ROOM_BYTES = 2**22
"""What is made at once where the new bytes are kept: longer than most tensors, and short enough to
be in the processor's cache until it is written."""

_NONE: Words = np.empty(0, np.intp)


class Room:
    """This thread's own ``memory``, until the next one is made, for ``ones`` in their order.

    All of them are kept, one after the other, or none is: then each piece takes the place of the
    one before, which is in the processor's cache.
    """

    def __init__(self, ones: Sequence[OneTensor]) -> None:
        self._ones = ones
        self._keeps = ones[0].is_kept
        self.block: int = PASSING_BYTES
        """So many bytes are in the processor's cache at once."""
        size = sum(one.length for one in ones) if self._keeps else self.block
        self.memory: Bytes = chunk_room(size, at=ones[0].tensor.span.offset)

    def __repr__(self) -> str:
        return f"<Room of {len(self.memory)} B for {len(self._ones)} tensors>"

    def places(self) -> Iterator[tuple[int, int]]:
        """For each, from which byte of ``memory`` on it may be, and how much of it at once."""
        begin = 0
        for one in self._ones:
            yield begin, one.length if self._keeps else min(self.block, one.length)
            begin += one.length if self._keeps else 0

    def hand_on(self, count: int) -> None:
        """Put the first ``count`` where they go, if anywhere. Raises: OSError of the local disk."""
        begin = 0
        for run in _runs(self._ones[:count]) if self._keeps else ():
            first, size = run[0], sum(one.length for one in run)
            changes, offset = first.staging.changes, first.tensor.span.offset
            if changes is not None:
                changes.change(first.file, offset, self.memory[begin:], span=size, words=_NONE)
            begin += size


def _runs(ones: Sequence[OneTensor]) -> Iterator[Sequence[OneTensor]]:
    """Those between which nothing lies in their file."""
    run, end = list[OneTensor](), -1
    for one in ones:
        if run and (one.file, one.tensor.span.offset) != (run[0].file, end):
            yield run
            run = []
        run.append(one)
        end = one.tensor.span.offset + one.length
    if run:
        yield run
