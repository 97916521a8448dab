"""What a directory of published versions holds. Nothing is pulled.

Rule: whatever is wrong with a version is said of that version, and the others are
looked at all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hotswap.errors import UpdateRejected
from hotswap.stream.aggregate import find_aggregate
from hotswap.stream.blobs import read_deltas
from hotswap.stream.chain import open_version
from hotswap.stream.density import changed_bytes
from hotswap.stream.header import MAX_HEADER_BYTES
from hotswap.stream.layout import INDEX, DeltaIndex, directory_of, published_versions, read_index
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place, local_directory, opened, place_of
from hotswap.stream.progress import Progress, Tally
from hotswap.stream.shapes import Shapes
from hotswap.stream.source import Source
from hotswap.stream.source_file import header_text
from hotswap.stream.stored import StoredTensors
from hotswap.weights.readable import AnyFolder

__all__ = ["FULL", "SourceSurvey", "VersionSurvey", "survey_source", "survey_version"]

FULL = "full"
"""The kind of a version that is a whole checkpoint; the others are called as encodings are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSurvey:
    """One version. ``base_version`` is what a delta builds on, None for a full one.

    ``size_bytes`` are those of its index and the files that it names. ``chain`` are the
    versions that lead to it: a full one, or 0 for the base, first and itself last; empty
    when one of them, ``missing``, is not there. ``changed_bytes`` were looked for when they
    are not None, and ``density`` is their share of the checkpoint. ``trouble`` is why it
    cannot be pulled, None when it is whole.
    """

    version: int
    kind: str | None = None
    base_version: int | None = None
    checksum_format: str | None = None
    tensors: int = 0
    files: int = 0
    size_bytes: int = 0
    changed_bytes: int | None = None
    density: float | None = None
    chain: tuple[int, ...] = ()
    missing: int | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSurvey:
    """Every version ascending, and the aggregate when there is one."""

    source: str
    versions: tuple[VersionSurvey, ...]
    aggregate: VersionSurvey | None = None


def survey_source(
    source: str | Path | Objects,
    *,
    base_dir: Path | None = None,
    density: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> SourceSurvey:
    """Look at every version of ``source``: indexes, headers, sizes; for ``density`` all blobs.

    The density needs to know how long tensors are: from ``base_dir``, else from the newest full
    version. A version that is removed meanwhile is left out. Raises: SourceNotReady when
    ``source`` cannot be listed; UpdateRejected when ``base_dir`` is no checkpoint.
    """
    source = place_of(source)
    if base_dir is not None:
        base_dir = local_directory(base_dir, "the base checkpoint")
    seen = _still_there(source, [survey_version(source, n) for n in published_versions(source)])
    seen = _fitting(source, base_dir, seen)
    lengths = _lengths(source, base_dir, seen) if density else None
    if lengths is not None:
        seen = _still_there(source, _densities(source, seen, lengths, Tally(progress)))
    by_number = {one.version: one for one in seen}
    aggregate = _aggregate(source, lengths)
    return SourceSurvey(
        source=str(source),
        versions=tuple(_with_chain(one, by_number) for one in seen),
        aggregate=aggregate,
    )


def _still_there(source: Place, seen: list[VersionSurvey]) -> list[VersionSurvey]:
    """Without those that somebody removed before they had been looked at."""
    if all(one.trouble is None for one in seen):
        return seen
    there = set(published_versions(source))
    return [one for one in seen if one.trouble is None or one.version in there]


def survey_version(source: Place, number: int) -> VersionSurvey:
    """One version, without its chain and its density: index, headers, sizes. Blocks."""
    try:
        with open_version(source, number, None) as folder:
            index = read_index(folder, version=number, names=None)
            if index is not None:
                return _delta(folder, index)
        return _full(source, number)
    except UpdateRejected as error:
        return VersionSurvey(version=number, trouble=str(error))


def _full(source: Place, number: int) -> VersionSurvey:
    with Source(source, names=(), allowed=None).full(number) as stored:
        return VersionSurvey(
            version=number,
            kind=FULL,
            tensors=len(stored.tensors),
            files=len(stored.files),
            size_bytes=sum(file.file.size_bytes for file in stored.files.values()),
        )


def _fitting(
    source: Place, base_dir: Path | None, seen: list[VersionSurvey]
) -> list[VersionSurvey]:
    """With what is wrong with full versions that are of another model than what is before them.

    Raises: UpdateRejected for a bad base.
    """
    shapes = None
    if base_dir is not None:
        with StoredTensors.at(base_dir) as base:
            shapes = Shapes.seen_in(base)
    found = list[VersionSurvey]()
    for one in seen:
        if one.kind == FULL:
            try:
                with Source(source, names=(), allowed=None).full(one.version) as stored:
                    if shapes is not None:
                        shapes.check(stored)
                    shapes = Shapes.seen_in(stored)
            except UpdateRejected as error:
                one = VersionSurvey(version=one.version, trouble=str(error))
        found.append(one)
    return _still_there(source, found)


def _delta(folder: AnyFolder, index: DeltaIndex) -> VersionSurvey:
    files = sorted(set(index.file_of.values()))
    found = VersionSurvey(
        version=index.version,
        kind=str(index.encoding),
        base_version=index.base_version,
        checksum_format=index.checksum_format,
        tensors=len(index.file_of),
        files=len(files),
    )
    try:
        for file in files:
            header_text(folder, file, at_most=MAX_HEADER_BYTES)
        return replace(found, size_bytes=sum(_size(folder, name) for name in (INDEX, *files)))
    except UpdateRejected as error:
        return replace(found, trouble=str(error))


def _size(folder: AnyFolder, name: str) -> int:
    with folder.open_file(name) as file:
        return file.size_bytes


def _lengths(
    source: Place, base_dir: Path | None, seen: list[VersionSurvey]
) -> dict[str, int] | None:
    """Tensor name -> bytes; None when nobody knows. Raises: UpdateRejected for a bad base."""
    if base_dir is not None:
        with StoredTensors.at(base_dir) as base:
            return base.lengths
    for one in reversed(seen):
        if one.kind == FULL:
            # One that has gone since is not the last one.
            with (
                suppress(UpdateRejected),
                StoredTensors.at(directory_of(source, one.version)) as stored,
            ):
                return stored.lengths
    return None


def _densities(
    source: Place, seen: list[VersionSurvey], lengths: Mapping[str, int], tally: Tally
) -> list[VersionSurvey]:
    found = list[VersionSurvey]()
    with tally.phase("density", total_bytes=sum(one.size_bytes for one in seen)):
        for one in seen:
            found.append(_with_density(directory_of(source, one.version), one, lengths))
            tally.through(read=one.size_bytes, done=one.size_bytes)
    return found


def _with_density(
    directory: Place, one: VersionSurvey, lengths: Mapping[str, int], *, stamped: bool = False
) -> VersionSurvey:
    if one.trouble is not None or one.kind == FULL:
        return one
    try:
        with opened(directory) as folder:
            index = read_index(folder, version=None, names=None)
            if index is None:
                return one
            deltas = read_deltas(folder, index, lengths, stamped=stamped)
        changed = sum(changed_bytes(delta, lengths[name]) for name, delta in deltas.items())
    except UpdateRejected as error:
        return replace(one, trouble=str(error))
    whole = sum(lengths.values())
    return replace(one, changed_bytes=changed, density=changed / whole if whole else 0.0)


def _with_chain(one: VersionSurvey, by_number: Mapping[int, VersionSurvey]) -> VersionSurvey:
    chain, at = [one.version], one
    while at.base_version:
        before = by_number.get(at.base_version)
        if before is None or before.kind is None:
            return replace(one, missing=at.base_version)
        at = before
        chain.append(at.version)
    if at.kind is None:
        return one
    return replace(one, chain=tuple(reversed(chain if at.kind == FULL else [*chain, 0])))


def _aggregate(source: Place, lengths: Mapping[str, int] | None) -> VersionSurvey | None:
    directory = find_aggregate(source)
    if directory is None:
        return None
    try:
        with opened(directory) as folder:
            index = read_index(folder, version=None, names=None)
            found = None if index is None else _delta(folder, index)
    except UpdateRejected as error:
        return VersionSurvey(version=0, trouble=str(error))
    if found is None:
        return VersionSurvey(version=0, trouble=f"{directory}: has no index of a delta (yet)")
    if lengths is not None:
        found = _with_density(directory, found, lengths, stamped=True)
    return replace(found, chain=(0, found.version))
