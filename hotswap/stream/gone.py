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
_MOST_RUNS = 8


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
    """Which of ``versions`` (ascending) there is a way to from the base, from a full version or
    from ``at_hand``, in words. Indexes are read where numbers do not follow on what can be."""
    runs, reached, looks = list[list[int]](), {0, *at_hand}, 0
    for version in versions:
        if version in at_hand:
            continue
        if runs and runs[-1][1] == version - 1:
            runs[-1][1] = version
            reached.add(version)
        elif looks < _MOST_LOOKS:
            looks += 1
            if _is_reached(version, reached, open_one, names):
                runs.append([version, version])
                reached.add(version)
    if not runs:
        return "no new copy can be made of them; publish a full version"
    if len(runs) == 1 and runs[0][1] == list(versions)[-1]:
        oldest = runs[0][0]
        return f"the oldest that can still be pulled is {oldest}, pull that or a newer one"
    told = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in runs[-_MOST_RUNS:])
    return f"of what is there only {told} can still be pulled; pull one of these"


def _is_reached(
    version: int,
    reached: Collection[int],
    open_one: Callable[[int], AnyFolder],
    names: Collection[str],
) -> bool:
    try:
        with open_one(version) as folder:
            index: DeltaIndex | None = read_index(folder, version=version, names=names)
    except UpdateRejected:
        return False
    return index is None or index.base_version in reached
