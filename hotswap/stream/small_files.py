"""The files of a local checkpoint that hold no tensors: configuration, tokenizer, index.

A state has the xxh3-128 of each as ``small``; one that a hotswap of before wrote has none, and
nothing is compared then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from hotswap.stream.checksums import OWN_CHECKSUM, new_hasher
from hotswap.stream.errors import LocalDamaged
from hotswap.stream.state import State, open_at_once

__all__ = ["refuse_small_faults", "small_digests", "small_faults"]

_PIECE_BYTES = 2**20
_TENSORS = ".safetensors"


def small_digests(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """Name -> xxh3-128 of those of ``names`` that hold no tensors. Raises: OSError."""
    return {name: _digest(directory / name) for name in names if not name.endswith(_TENSORS)}


def small_faults(directory: Path, state: State) -> Iterator[str]:
    """What is wrong with them, and which file of ``state`` is gone; a sentence for each."""
    for name in state.files:
        if not os.path.lexists(directory / name):
            yield f"{name}: is gone"
    for name, wanted in state.small.items():
        if not os.path.lexists(directory / name):
            continue
        try:
            seen = _digest(directory / name)
        except OSError as error:
            yield f"{name}: cannot be read ({error.strerror})"
            continue
        if seen != wanted:
            yield f"{name}: has the checksum {seen}, but the last pull left {wanted}"


def refuse_small_faults(directory: Path, state: State) -> None:
    """Raises: LocalDamaged naming the first."""
    for fault in small_faults(directory, state):
        raise LocalDamaged(f"{directory}: {fault}")


def _digest(path: Path) -> str:
    hasher = new_hasher(OWN_CHECKSUM)
    with open(path, "rb", opener=open_at_once) as file:
        while piece := file.read(_PIECE_BYTES):
            hasher.update(memoryview(piece))
    return hasher.hexdigest()
