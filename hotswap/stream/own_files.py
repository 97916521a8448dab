"""Which files of a local checkpoint pulls put there, said once more than in its state.

``.weight_sync/files.json``: name -> size in bytes, which no pull changes but one that puts
another file in its place. A copy whose state was lost can be made anew by it: weights that are
not in it are somebody's, and stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from hotswap.stream.disk import Disk
from hotswap.stream.state import Reserved, read_text, write_durably
from hotswap.stream.stored import is_weight_file

__all__ = ["changed_sizes", "not_written", "write_own"]


def write_own(paths: Reserved, disk: Disk, names: Iterable[str]) -> None:
    """Say that ``names``, which wait in ``incoming``, are a pull's. Raises: OSError.

    Before they take their places: until they are there, nothing of those sizes is taken for them.
    """
    sizes = {name: (paths.incoming / name).stat().st_size for name in names}
    text = json.dumps(sizes, indent=1).encode()
    write_durably(disk, paths.own, text, over_directory=True)


def not_written(paths: Reserved) -> tuple[str, ...]:
    """The files of weights that no pull is known to have written. Raises: OSError."""
    own = _own(paths)
    weights = sorted(name for name in os.listdir(paths.directory) if is_weight_file(name))
    return tuple(name for name in weights if own.get(name) != _size_of(paths, name))


def changed_sizes(paths: Reserved) -> Iterator[str]:
    """The files that are shorter or longer than a pull left them; a sentence for each."""
    for name, size in _own(paths).items():
        try:
            seen = _size_of(paths, name)
        except OSError:
            continue
        if seen != size:
            yield f"{name}: has {seen} bytes, but the last pull left {size}"


def _own(paths: Reserved) -> Mapping[str, int]:
    try:
        return msgspec.json.decode(read_text(paths.own) or b"", type=dict[str, int])
    except (ValueError, RecursionError, OSError):
        return {}


def _size_of(paths: Reserved, name: str) -> int:
    return (paths.directory / name).lstat().st_size
