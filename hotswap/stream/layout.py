"""Which directories of a source are versions, and what a version's index says.

``SOURCE/weight_v000007/`` holds version 7: a delta when its index has
``delta_encoding``, else a full checkpoint, which needs no index. Version 0 is the base
that a server was started with; it is never published.

Rules:

* Only an index makes a delta: until it is there, a directory of deltas is not ready.
* ``metadata.version`` is the directory's number. Names are plain file names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import overload

from hotswap.stream.checksums import CHECKSUMS
from hotswap.stream.encodings import Encoding, encoding_named
from hotswap.stream.errors import (
    OutOfOrder,
    SourceNotReady,
    UnknownEncoding,
    VersionMalformed,
    raised_as,
)
from hotswap.stream.header import MAX_HEADER_BYTES, header_room
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place, place_of
from hotswap.stream.source_file import read_text
from hotswap.weights.readable import AnyFolder
from hotswap.weights.strict_json import parse_object

__all__ = [
    "INDEX",
    "MAX_VERSION",
    "DeltaIndex",
    "directory_of",
    "is_number",
    "is_visible",
    "published_versions",
    "read_index",
    "spelled",
    "version_named",
]

INDEX = "model.safetensors.index.json"

MAX_VERSION = 10**18 - 1
"""What an index can spell."""

_SHOWN_BY = (INDEX, "model.safetensors")
"""Put whole and last: without one of them there may be more to come."""

_DIRECTORY = re.compile(r"weight_v(\d{6,})")
_SHORT_BYTES = 2**18
"""Indexes up to here are parsed once, as long as they are looked at now and then."""

_NUMBER = re.compile(r"\d{1,18}")
_FORBIDDEN = frozenset("/\\\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaIndex:
    """What the index of a delta says. ``file_of``: tensor name -> file name, no change: empty."""

    version: int
    base_version: int
    encoding: Encoding
    checksum_format: str
    file_of: Mapping[str, str]
    text: bytes

    def __str__(self) -> str:
        return (
            f"version {self.version} ({self.encoding} on {self.base_version}, "
            f"{len(self.file_of)} tensors)"
        )


def spelled(version: int) -> str:
    """A version as indexes and states write it: ``7`` is ``000007``."""
    return f"{version:06d}"


def is_number(text: object) -> bool:
    """Whether ``text`` spells a version: ASCII digits, and no more than a version can have."""
    return isinstance(text, str) and text.isascii() and _NUMBER.fullmatch(text) is not None


@overload
def directory_of(source: Path, version: int) -> Path: ...
@overload
def directory_of(source: Objects, version: int) -> Objects: ...
def directory_of(source: Place, version: int) -> Place:
    """Where ``version`` is published."""
    return source / f"weight_v{spelled(version)}"


def published_versions(source: str | Path | Objects) -> tuple[int, ...]:
    """The numbers of every version directory, whole or not, ascending; in an object store of
    those that are visible.

    Raises: SourceNotReady, SourceUnusable.
    """
    source = place_of(source)
    names: Collection[str]
    if isinstance(source, Objects):
        names = _visible(source.names())
    else:
        try:
            names = os.listdir(source)
        except OSError as error:
            raise SourceNotReady(
                f"{source}: cannot be listed ({error.strerror}); wanted a directory of published "
                "versions: look at the path, and try again once it is there"
            ) from error
    return tuple(sorted(number for number in map(version_named, names) if number is not None))


def version_named(directory: str) -> int | None:
    """The version whose directory has that name; None for another directory's, and version 0."""
    match = _DIRECTORY.fullmatch(directory)
    number = int(match[1]) if match else 0
    return number if number and directory == f"weight_v{spelled(number)}" else None


def is_visible(version: AnyFolder) -> bool:
    """Whether an object store's ``version`` is there: with its index, or as one whole file.

    Directories show more, and what they show is judged by what is in them. Raises: StreamError.
    """
    return any(version.has(name) for name in _SHOWN_BY)


def _visible(objects: Collection[str]) -> frozenset[str]:
    """The directories of ``directory/name`` that hold a version."""
    parted = (path.partition("/") for path in objects)
    return frozenset(directory for directory, _, name in parted if name in _SHOWN_BY)


def read_index(
    folder: AnyFolder, *, version: int | None, names: Collection[str] | None
) -> DeltaIndex | None:
    """The index of a delta; None for a full version.

    ``version`` is the directory's number, None where it has none; ``names`` are the
    tensors that a delta can be about, and bound what is read; None bounds it by 100 MiB.

    Raises: SourceNotReady, VersionMalformed, UnknownEncoding, OutOfOrder.
    """
    with raised_as(SourceNotReady):
        is_there = folder.has(INDEX)
    if not is_there:
        return None
    source = f"{folder.path}: {INDEX}"
    room = MAX_HEADER_BYTES if names is None else header_room(names)
    text = read_text(folder, INDEX, at_most=room)
    return (_parsed_before if len(text) <= _SHORT_BYTES else _parsed)(text, version, source)


def _parsed(text: bytes, version: int | None, source: str) -> DeltaIndex | None:
    # The index is renamed into place: one that does not parse is not wholly visible.
    with raised_as(SourceNotReady):
        index = parse_object(text, source=source)
    metadata = index.get("metadata", {})
    if not isinstance(metadata, dict):
        raise VersionMalformed(f"{source}: metadata is {metadata!r:.80}, wanted an object")
    if "delta_encoding" not in metadata:
        _check_full(metadata, version, source)
        return None
    number = _number(metadata, "version", source)
    if version is not None and number != version:
        raise VersionMalformed(
            f"{source}: says that it is version {number}, wanted the {version} of its directory"
        )
    base = _number(metadata, "base_version", source)
    if base >= number:
        raise OutOfOrder(
            f"{source}: version {number} says that it builds on {base}, wanted one before it"
        )
    return DeltaIndex(
        version=number,
        base_version=base,
        encoding=_encoding(metadata, source),
        checksum_format=_checksum_format(metadata, source),
        file_of=_weight_map(index, source),
        text=text,
    )


_parsed_before = lru_cache(maxsize=16)(_parsed)
"""A pull looks several times at the index of each version, to see that it is still the same."""


def _check_full(metadata: Mapping[str, object], version: int | None, source: str) -> None:
    if "version" not in metadata or version is None:
        return
    number = _number(metadata, "version", source)
    if number != version:
        raise VersionMalformed(
            f"{source}: says that it is version {number}, wanted the {version} of its directory"
        )


def _number(metadata: Mapping[str, object], key: str, source: str) -> int:
    text = metadata.get(key)
    if not isinstance(text, str) or not is_number(text):
        raise VersionMalformed(
            f"{source}: {key} is {text!r:.80}, wanted digits such as '{spelled(7)}'"
        )
    return int(text)


def _encoding(metadata: Mapping[str, object], source: str) -> Encoding:
    encoding = encoding_named(metadata["delta_encoding"], where=f"{source}: ")
    compression = metadata.get("compression_format")
    if compression != "zstd":
        raise UnknownEncoding(
            f"{source}: compression_format {compression!r:.80}, wanted 'zstd'; publish with it"
        )
    return encoding


def _checksum_format(metadata: Mapping[str, object], source: str) -> str:
    name = metadata.get("checksum_format")
    if not isinstance(name, str) or name not in CHECKSUMS:
        raise UnknownEncoding(
            f"{source}: checksum_format {name!r:.80}, wanted one of {', '.join(CHECKSUMS)}; "
            "publish with one of them"
        )
    return name


def _weight_map(index: Mapping[str, object], source: str) -> dict[str, str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise VersionMalformed(f"{source}: weight_map is {weight_map!r:.80}, wanted an object")
    files = weight_map.values()
    # Few files hold many tensors; what is no name may also be what no set can hold.
    distinct = set(files) if all(isinstance(file, str) for file in files) else files
    if not all(map(_is_plain, distinct)):
        tensor, file = next(item for item in weight_map.items() if not _is_plain(item[1]))
        raise VersionMalformed(
            f"{source}: tensor {tensor!r:.200} is mapped to {file!r:.80}, wanted the name of a "
            "*.safetensors file in the same directory"
        )
    return weight_map


def _is_plain(file: object) -> bool:
    if not isinstance(file, str) or _FORBIDDEN & set(file):
        return False
    return file.endswith(".safetensors") and not file.startswith(".")
