"""Removing versions that no chain needs any more.

Rule: the newest ``keep`` versions stay, and so does everything that leads to them, back to a
full version or the base. A reader at any of them goes on; one that joins finds its way.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotswap.stream.disk import Disk, LocalDisk
from hotswap.stream.errors import StreamError, VersionMalformed
from hotswap.stream.layout import directory_of, published_versions
from hotswap.stream.object_upkeep import remove_versions
from hotswap.stream.objects import Objects
from hotswap.stream.place import place_of
from hotswap.stream.publisher_snapshot import any_names
from hotswap.stream.shapes import Shapes
from hotswap.stream.source import Source

__all__ = ["Pruned", "prune"]

_MARK = ".pruned-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Versions that are gone (or would be), and those that stay."""

    removed: tuple[int, ...]
    kept: tuple[int, ...]


def prune(
    source: str | Path | Objects, *, keep: int, dry_run: bool = False, disk: Disk | None = None
) -> Pruned:
    """Remove what none of the newest ``keep`` versions needs; ``dry_run``: only say what.

    A version disappears as a whole, and one that was half removed before is removed now.
    Safe beside a publisher, and beside another prune. Raises: StreamError when a chain cannot
    be followed, or begins at what is not wholly there (yet), and nothing is removed then; OSError.
    """
    if keep < 1:
        raise StreamError(f"keep is {keep}, wanted 1 or more versions")
    source, disk = place_of(source), disk or LocalDisk()
    versions = published_versions(source)
    needed, stream = set[int](), Source(source, names=any_names(), allowed=None)
    for version in versions[-keep:]:
        chain = stream.chain(version)
        if chain.start and chain.start not in needed:
            # One without an index may be a delta that is still being written.
            _check_full(stream, chain.start, versions)
        needed |= {chain.start, *(index.version for index in chain.deltas)}
    removed = tuple(version for version in versions if version not in needed)
    if dry_run:
        pass
    elif isinstance(source, Objects):
        remove_versions(source, removed, before=min(needed, default=0))
    else:
        for version in removed:
            _remove(directory_of(source, version), disk)
        for leftover in source.glob(f"{_MARK}*"):
            _remove_tree(leftover)
    return Pruned(removed=removed, kept=tuple(v for v in versions if v in needed))


def _check_full(stream: Source, number: int, versions: Sequence[int]) -> None:
    """Raises: StreamError for a full version that is not one of the model of those before it."""
    with stream.full(number) as full:
        shapes, names = _known_before(stream, [one for one in versions if one < number])
        if shapes is not None:
            shapes.check(full)
        lacking = sorted(names - full.tensors.keys())
        if lacking:
            raise VersionMalformed(
                f"{full.folder.path}: lacks tensor {lacking[0]!r:.200}, which a version before it "
                f"changes ({len(lacking)} in all); publish the version again"
            )


def _known_before(stream: Source, versions: Sequence[int]) -> tuple[Shapes | None, set[str]]:
    """The shapes of the last full version, and tensors that deltas after it change.

    Nothing where nobody knows: a chain that is broken may be why there is another full version.
    """
    if not versions:
        return None, set()
    try:
        chain = stream.chain(versions[-1])
        names = {name for index in chain.deltas for name in index.file_of}
        if not chain.start:
            return None, names
        with stream.full(chain.start) as before:
            return Shapes.seen_in(before), names
    except StreamError:
        return None, set()


def _remove(directory: Path, disk: Disk) -> None:
    # Under another name first: nobody takes what is left of a version for the version.
    gone = directory.with_name(f"{_MARK}{directory.name}")
    try:
        disk.rename(directory, gone)
    except FileNotFoundError:
        return  # another prune was first
    disk.sync_directory(directory.parent)
    _remove_tree(gone)


def _remove_tree(directory: Path) -> None:
    """Remove it, whoever else removes it meanwhile. Raises: OSError."""
    # Files that go under its hands make rmtree give up: what is left then is its own.
    while directory.exists():
        try:
            shutil.rmtree(directory)
        except FileNotFoundError:
            continue
