"""The stream that ``pull`` and ``pull_load`` measure with: 1 GB of bf16, 1 % of it new each time.

Which elements change is drawn at random, and so is what they change to: no run of equal bytes
is longer than chance makes it, and a version takes about 15 MB on the wire.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from contrib.bench.paths import BENCH_DIR
from hotswap.stream import directory_of, publish_delta
from hotswap.stream.encodings import Bytes
from hotswap.stream.publisher import Change
from hotswap.stream.stored import StoredTensors

__all__ = ["SHARE", "Tensors", "published", "tensors_of", "wire_bytes"]

Tensors = dict[str, Bytes]

SHARE = 0.01
"""Of a tensor's elements, how many a version changes."""

_ELEMENT = np.uint16  # as wide as bf16


def published(base: Path, *, versions: int) -> Path:
    """A source with ``versions`` xor versions on ``base``; made when absent."""
    source = BENCH_DIR / f"{base.name}-stream-{versions}"
    if not source.is_dir():
        unfinished = source.with_name(f"{source.name}.{os.getpid()}.tmp")
        try:
            tensors = tensors_of(base)
            for version in range(1, versions + 1):
                publish_delta(unfinished, version, [_changes(tensors, seed=version)])
            unfinished.rename(source)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return source


def wire_bytes(source: Path, version: int) -> int:
    """Bytes of the files of one version."""
    return sum(path.stat().st_size for path in directory_of(source, version).iterdir())


def _changes(tensors: Tensors, *, seed: int) -> Iterator[Change]:
    """What a version changes; ``tensors`` are the new ones once all are through."""
    random = np.random.default_rng(seed)
    for name, old in list(tensors.items()):
        new = old.copy()
        elements = new.view(_ELEMENT)
        count = max(1, round(SHARE * len(elements)))
        at = random.choice(len(elements), count, replace=False, shuffle=False)
        elements[at] ^= random.integers(1, 2**16, count, dtype=_ELEMENT)
        yield name, old, new
        tensors[name] = new


def tensors_of(base: Path) -> Tensors:
    """Every tensor's bytes."""
    found: Tensors = {}
    with StoredTensors.at(base) as stored:
        for name, tensor in stored.tensors.items():
            found[name] = np.empty(tensor.span.length, np.uint8)
            tensor.read_into(found[name].data)
    return found
