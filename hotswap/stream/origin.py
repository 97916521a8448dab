"""Which bytes a local checkpoint holds, told by what the last pull wrote and by its files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hotswap.sparse.origin import Base, FileMark, Origin
from hotswap.stream.layout import INDEX
from hotswap.stream.log import holding_in
from hotswap.stream.state import Reserved, State
from hotswap.weights.readable import AnyFile

__all__ = ["base_of", "origin_of"]


def origin_of(directory: Path, files: Iterable[AnyFile]) -> Origin | None:
    """What ``directory`` holds, whose files of weights are open as ``files``.

    None for one that no pull wrote, or of which that cannot be told. Only while its lock is held.
    """
    try:
        return _origin(directory, files)
    except OSError:
        return None


def _origin(directory: Path, files: Iterable[AnyFile]) -> Origin | None:
    paths = Reserved(directory)
    held = holding_in(directory)
    if held is None or paths.journal.exists():
        return None
    state = held.state
    marks = [_mark(file.name, os.fstat(file.fileno())) for file in files]
    index = directory / INDEX
    if index.exists():
        marks.append(_mark(INDEX, index.stat()))
    return Origin(
        directory=os.path.realpath(directory),
        version=state.number,
        index_digest=state.index_digest,
        state_digest=held.digest,
        files=tuple(sorted(marks)),
        base=base_of(state),
    )


def _mark(name: str, status: os.stat_result) -> FileMark:
    return name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def base_of(state: State) -> Base | None:
    """The base whose tensors a checkpoint in ``state`` has, None for any later version."""
    if state.number or state.base_checkpoint_dir is None or state.base_digest is None:
        return None
    return Base(path=state.base_checkpoint_dir, digest=state.base_digest)
