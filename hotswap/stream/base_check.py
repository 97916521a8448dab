"""Is it the delta that is damaged, or the base that is another one than it was made for?

Both show as a checksum that is wrong. A version that fits none of a few tensors was made for
another base; one that fits some has a damaged delta.
"""

from __future__ import annotations

from collections.abc import Mapping

from hotswap.stream.apply import bytes_of
from hotswap.stream.blobs import Delta
from hotswap.stream.checksums import checksum
from hotswap.stream.errors import BaseChanged, DeltaDamaged
from hotswap.stream.stored import StoredTensor, StoredTensors

__all__ = ["base_blamed", "fits_none"]

_LOOKS = 8


def base_blamed(
    error: DeltaDamaged,
    base: StoredTensors,
    first: Mapping[str, Delta],
    *,
    path: str,
    made_of: str | None = None,
) -> DeltaDamaged | BaseChanged:
    """``error``, or that the base is another one.

    ``base`` are the tensors of version 0, of the checkpoint at ``path``, ``first`` the deltas
    of the version that was put on it. ``made_of``: the base that a copy was made of before.
    """
    looked, wrong = fits_none(base, first)
    if wrong == 0 or wrong < looked:
        return error
    version = next(iter(first.values())).version
    seen = f"version {version} gives wrong bytes for each of {looked} tensors"
    if made_of is not None and made_of != path:
        return BaseChanged(
            f"{path}: {seen}, and the local checkpoint was made from the base {made_of}; give that "
            "base, or another local directory"
        )
    if looked > 1:
        return BaseChanged(
            f"{path}: {seen}, so it was made for another base checkpoint; give the one that the "
            "stream began with (--base; a server is started with it), or if this is it publish "
            "the version again"
        )
    return DeltaDamaged(
        f"{error}; nothing tells a damaged version from a base checkpoint that is another one "
        f"than {path}: see to that first"
    )


def fits_none(base: StoredTensors, first: Mapping[str, Delta]) -> tuple[int, int]:
    """How many tensors of ``first`` were looked at, the smallest ones, and how many are wrong.

    One whose delta cannot be decoded says nothing of the base, and does not count.
    """
    looked = wrong = 0
    known = [(base.tensors[name], delta) for name, delta in first.items() if name in base.tensors]
    for tensor, delta in sorted(known, key=lambda pair: pair[0].span.length)[:_LOOKS]:
        fits = _fits(tensor, delta)
        if fits is not None:
            looked, wrong = looked + 1, wrong + (not fits)
    return looked, wrong


def _fits(tensor: StoredTensor, delta: Delta) -> bool | None:
    content = bytes_of(bytearray(tensor.span.length))
    try:
        tensor.read_into(content.data)
        delta.apply(content)
    except (DeltaDamaged, OSError):
        return None
    return checksum(delta.checksum_format, content.data) == delta.checksum
