"""One look at a source: whether it is whole, and what is missing.

Rules:

* Names come from listing a directory, never from asking for one: a network filesystem may
  remember for a minute that a name was not there, and a listing is what refreshes it.
* Every look begins anew; nothing is remembered from the one before.
* A file counts once it has the size that its own header says.
"""

from __future__ import annotations

import os
from pathlib import Path

from hotswap.errors import UpdateRejected
from hotswap.stream import directory_of
from hotswap.stream.header import MAX_HEADER_BYTES
from hotswap.stream.layout import INDEX, is_number, version_named
from hotswap.stream.source_file import header_of
from hotswap.stream.stored import StoredTensors, is_weight_file
from hotswap.weights.folder import Folder
from hotswap.weights.layout import find_layout

__all__ = ["has_newer", "what_is_missing"]


def what_is_missing(root: Path, source: Path, version: str | None) -> str | None:
    """What is not there yet; None when the source is whole.

    That is version ``version`` of the stream that ``source`` is, or ``source`` itself when
    it is a checkpoint. Blocks.
    """
    try:
        names = _listed(root, source)
        directory = _version_directory(source, version)
        if directory is not None and directory.name in names:
            # Listed by its own parent, just now: it may be asked for.
            return _of_checkpoint(directory)
        if any(map(is_weight_file, names)):
            return _of_checkpoint(source)
    except (UpdateRejected, OSError) as error:
        return str(error)
    wanted = "weights" if directory is None else f"{directory.name}, or weights of its own"
    return f"{source} has neither an index nor weights among {len(names)} names, wanted {wanted}"


def has_newer(source: Path, version: str | None) -> bool:
    """Whether ``source`` lists versions after ``version``, and not that one. Blocks."""
    wanted = _version_directory(source, version)
    try:
        names = os.listdir(source)
    except OSError:
        return False
    numbers = [number for name in names if (number := version_named(name)) is not None]
    number = None if wanted is None else version_named(wanted.name)
    return number is not None and number not in numbers and max(numbers, default=0) > number


def _listed(root: Path, source: Path) -> list[str]:
    """The names in ``source``, reached through the listing of every directory above it."""
    names = os.listdir(root)
    at = root
    for part in source.relative_to(root).parts:
        if part not in names:
            raise FileNotFoundError(f"{part} is not among the {len(names)} names in {at}")
        at = at / part
        names = os.listdir(at)
    return names


def _version_directory(source: Path, version: str | None) -> Path | None:
    """Where a stream has ``version``; None for a label that is no published version's number."""
    number = int(version) if version is not None and is_number(version) else 0
    return directory_of(source, number) if number else None


def _of_checkpoint(directory: Path) -> str | None:
    """A full version, a delta, or any checkpoint. Raises: UpdateRejected, OSError."""
    with Folder.open(directory) as folder:
        if INDEX in folder.names():
            _check_indexed(folder)
            return None
        if not find_layout(folder).is_safetensors:
            # What is inside such a file says nothing of its length.
            return None
    # A published version is no local checkpoint: whether it has a log is not to be asked.
    StoredTensors.at(directory, with_log=True).close()
    return None


def _check_indexed(folder: Folder) -> None:
    """Every file that the index names; a delta of nothing names none."""
    weight_map = folder.read_object(INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise UpdateRejected(f"{folder.path}: {INDEX} has no weight_map yet")
    there = folder.names()
    for name in sorted({str(file) for file in weight_map.values()}):
        if name not in there:
            raise FileNotFoundError(f"{name} is not among the {len(there)} names in {folder.path}")
        with folder.open_file(name) as file:
            header_of(file, source=f"{folder.path}: {name}", at_most=MAX_HEADER_BYTES)
