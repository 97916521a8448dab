"""From old bytes to verified new bytes, in memory.

Rule: several deltas of one tensor are applied one after the other in memory and the last
one's checksum decides: that is the same as pulling version by version, whatever the
encodings, with one read and one write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from hotswap.stream.blobs import Delta
from hotswap.stream.checksums import OWN_CHECKSUM, checksum
from hotswap.stream.encodings import Bytes
from hotswap.stream.errors import DeltaDamaged

__all__ = ["Fold", "blame", "bytes_of", "fold", "grouped"]

Fold: TypeAlias = Mapping[str, Sequence[Delta]]
"""Tensor name -> its deltas, oldest first, never empty."""


def grouped(versions: Sequence[Mapping[str, Delta]]) -> dict[str, list[Delta]]:
    """The deltas of ``versions`` (oldest first) by tensor."""
    by_tensor = dict[str, list[Delta]]()
    for version in versions:
        for name, delta in version.items():
            by_tensor.setdefault(name, []).append(delta)
    return by_tensor


def fold(tensor: Bytes, deltas: Sequence[Delta]) -> str | None:
    """Apply ``deltas`` to ``tensor`` in place; its own checksum then, None when it is wrong.

    Raises: DeltaDamaged naming version and tensor when a delta cannot be decoded.
    """
    for delta in deltas:
        delta.apply(tensor)
    last = deltas[-1]
    seen = checksum(last.checksum_format, tensor.data)
    if seen != last.checksum:
        return None
    return seen if last.checksum_format == OWN_CHECKSUM else checksum(OWN_CHECKSUM, tensor.data)


def blame(tensor: Bytes, deltas: Sequence[Delta]) -> DeltaDamaged:
    """Why ``fold`` of the same old bytes was wrong: the first version that is.

    ``tensor`` is used up. Raises: DeltaDamaged when a delta cannot be decoded.
    """
    for delta in deltas:
        delta.apply(tensor)
        seen = checksum(delta.checksum_format, tensor.data)
        if seen != delta.checksum:
            break
    return DeltaDamaged(
        f"{delta.where}: gives bytes with the checksum {seen}, wanted {delta.checksum} "
        f"({delta.checksum_format}); publish the version again"
    )


def bytes_of(buffer: bytearray) -> Bytes:
    """``buffer`` as an array over the same memory."""
    return np.frombuffer(buffer, np.uint8)
