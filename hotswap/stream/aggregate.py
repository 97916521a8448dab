"""``aggregate/``: one delta from the base to some version M, for who joins late.

Its single directory is written over again while it may be read: every file is stamped
with the version (``version`` in its metadata), and an aggregate whose stamps disagree, or
that changed meanwhile, is skipped. It only saves work: the versions give the same bytes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from hotswap.errors import UpdateRejected
from hotswap.stream.blobs import Delta, read_deltas
from hotswap.stream.errors import SourceNotReady, VersionMalformed
from hotswap.stream.layout import INDEX, DeltaIndex, read_index
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place, opened
from hotswap.weights.roots import Allowed

__all__ = ["DIRECTORY", "aggregate_deltas", "aggregate_index", "find_aggregate"]

DIRECTORY = "aggregate"

_log = logging.getLogger("hotswap.pull")


def find_aggregate(source: Place) -> Place | None:
    """Where ``source`` has its aggregate; None without one, and where nothing can be listed.

    A listing has to have its name first: a mount may remember for long that it was not there.
    In an object store it is there with its index.
    """
    if isinstance(source, Objects):
        return _if_indexed(source / DIRECTORY)
    try:
        return source / DIRECTORY if DIRECTORY in os.listdir(source) else None
    except OSError as error:
        _log.info("%s has no aggregate that can be seen: %s", source, error)
        return None


def _if_indexed(directory: Objects) -> Objects | None:
    try:
        return directory if (directory / INDEX).exists() else None
    except UpdateRejected as error:
        _log.info("%s cannot be seen: %s", directory, error)
        return None


def aggregate_index(
    source: Place, *, target: int, lengths: Mapping[str, int], allowed: Allowed | None
) -> DeltaIndex | None:
    """The aggregate's index; None when there is none that helps on the way to ``target``."""
    directory = find_aggregate(source)
    if directory is None:
        return None
    try:
        with opened(directory, allowed=allowed) as folder:
            index = read_index(folder, version=None, names=lengths)
    except UpdateRejected as error:
        _log.info("the aggregate is skipped: %s", error)
        return None
    if index is None or index.base_version != 0 or index.version > target:
        return None
    return index


def aggregate_deltas(
    source: Place, index: DeltaIndex, *, lengths: Mapping[str, int], allowed: Allowed | None
) -> Mapping[str, Delta] | None:
    """The deltas of ``index``; None when the directory is not in one state."""
    try:
        with opened(source / DIRECTORY, allowed=allowed) as folder:
            if "version" in index.file_of:
                raise VersionMalformed("a tensor is called 'version', which is where stamps are")
            deltas = read_deltas(folder, index, lengths, stamped=True)
            after = read_index(folder, version=None, names=lengths)
            if after is None or after.text != index.text:
                raise SourceNotReady("its index changed while it was read")
    except UpdateRejected as error:
        _log.info("the aggregate is skipped: %s", error)
        return None
    return deltas
