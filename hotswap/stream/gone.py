"""Versions that will not come: publishers go upwards, so that what is missing below is gone.

Rule: a version that is not there is waited for only while nothing newer is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from hotswap.errors import UpdateRejected
from hotswap.stream.errors import SourceNotReady, VersionMissing
from hotswap.stream.layout import DeltaIndex, directory_of, published_versions, read_index
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place
from hotswap.weights.readable import AnyFolder

__all__ = ["gone", "what_can_be_pulled"]

_MOST_LOOKS = 4096


def gone(
    error: SourceNotReady,
    source: Place,
    target: int,
    *,
    at_hand: Collection[int],
    open_one: Callable[[int], AnyFolder],
    names: Collection[str],
) -> SourceNotReady | VersionMissing:
    """``error``, that ``target`` is not ready, or that it will not be: newer ones are there."""
    try:
        versions = published_versions(source)
        if not versions or versions[-1] < target or _has_any_of(source, target):
            return error
    except UpdateRejected:
        return error
    return VersionMissing(
        f"{directory_of(source, target)}: version {target} is gone (it was pruned, or never "
        f"published): {versions[-1]} is the newest; "
        f"{what_can_be_pulled(versions, at_hand=at_hand, open_one=open_one, names=names)}"
    )


def _has_any_of(source: Place, version: int) -> bool:
    """Whether anything of ``version`` is there, whole or not."""
    if isinstance(source, Objects):
        prefix = f"{directory_of(source, version).name}/"
        return any(name.startswith(prefix) for name in source.names())
    return version in published_versions(source)


def what_can_be_pulled(
    versions: Collection[int],
    *,
    at_hand: Collection[int],
    open_one: Callable[[int], AnyFolder],
    names: Collection[str],
) -> str:
    """The oldest of ``versions`` (ascending) that there is a way to from the base, from a full
    version or from ``at_hand``, in words; indexes are read."""
    reached = {0, *at_hand}
    for version in list(versions)[:_MOST_LOOKS]:
        if version in at_hand:
            continue
        try:
            with open_one(version) as folder:
                index: DeltaIndex | None = read_index(folder, version=version, names=names)
        except UpdateRejected:
            continue
        if index is None or index.base_version in reached:
            return f"the oldest that can still be pulled is {version}, pull that or a newer one"
    return "no new copy can be made of them; publish a full version"
