"""Which versions bring a checkpoint to a target: found whole before anything is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

from hotswap.errors import UpdateRejected
from hotswap.stream.errors import OutsideRoots, SourceNotReady, StreamError, VersionMissing
from hotswap.stream.layout import DeltaIndex, directory_of, is_visible, read_index
from hotswap.stream.no_source import no_source
from hotswap.stream.objects import ObjectFolder, Objects
from hotswap.stream.place import Place
from hotswap.weights.folder import Folder
from hotswap.weights.readable import AnyFolder
from hotswap.weights.roots import Allowed

__all__ = ["Chain", "OpenVersion", "open_version", "resolve"]

OpenVersion: TypeAlias = Callable[[int], AnyFolder]
"""The pinned directory of a version. Raises: SourceNotReady when it is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Start from ``start`` and apply ``deltas`` in order.

    ``start`` is a full version's number (0: the base), or one of the versions that the
    caller has already.
    """

    start: int
    deltas: tuple[DeltaIndex, ...]

    @property
    def target(self) -> int:
        """The version that the chain ends at."""
        return self.deltas[-1].version if self.deltas else self.start


def open_version(source: Place, version: int, allowed: Allowed | None) -> AnyFolder:
    """Pin the directory of ``version``, once the source's own listing has it.

    A network filesystem may remember for a minute that a name was not there; it is a listing
    that refreshes it. An object store lists late, and is asked for the version itself.
    Raises: SourceNotReady, SourceUnusable, OutsideRoots.
    """
    if isinstance(source, Objects):
        place = directory_of(source, version)
        folder = ObjectFolder(place)
        if not is_visible(folder):
            raise _not_there(place, version)
        return folder
    directory = directory_of(source, version)
    try:
        if directory.name not in os.listdir(source):
            raise _not_there(directory, version)
    except OSError as error:
        unusable = no_source(source)
        if unusable is not None:
            raise unusable from error
        raise SourceNotReady(
            f"{source}: cannot be listed ({error.strerror}), wanted version {version} in it; "
            "look at the path, and pull again once it is there"
        ) from error
    try:
        return Folder.open(directory, allowed=allowed)
    except UpdateRejected as error:
        if error.__cause__ is None:
            raise OutsideRoots(str(error)) from error
        raise _not_there(directory, version) from error


def _not_there(directory: Place, version: int) -> SourceNotReady:
    error = SourceNotReady(
        f"{directory}: version {version} is not there (yet); pull again once it is published"
    )
    error.absent = True
    return error


def resolve(
    target: int, *, at_hand: Collection[int], open_one: OpenVersion, names: Collection[str]
) -> Chain:
    """Walk back from ``target`` to a full version, the base, or a version of ``at_hand``.

    Raises: SourceNotReady when the target is not there, VersionMissing naming what is
    missing on the way, and what ``read_index`` raises.
    """
    deltas = list[DeltaIndex]()
    number = target
    while number and number not in at_hand:
        index = _index_of(number, target, open_one, names)
        if index is None:
            break
        deltas.append(index)
        number = index.base_version
    return Chain(start=number, deltas=tuple(reversed(deltas)))


def _index_of(
    number: int, target: int, open_one: OpenVersion, names: Collection[str]
) -> DeltaIndex | None:
    try:
        folder = open_one(number)
    except SourceNotReady as error:
        if number == target:
            raise
        raise _missing(number, target, error) from error
    with folder:
        return read_index(folder, version=number, names=names)


def _missing(number: int, target: int, error: StreamError) -> VersionMissing:
    seen, _, _ = str(error).partition(";")  # what it advises is for a target, which may come
    return VersionMissing(
        f"version {number} is missing on the way to {target} ({seen}); publish it again, or "
        "publish a full version after it"
    )
