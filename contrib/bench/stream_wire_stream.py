"""The streams that ``stream_wire`` measures with: 1 GB of bf16, a share of it a step further.

Which elements change is drawn at random; each goes up or down by the smallest step that bf16
has there, as most do that a small learning rate moves. The same versions are published
as ``xor`` and as ``gap``.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from contrib.bench.paths import BENCH_DIR
from contrib.bench.pull_stream import Tensors, tensors_of
from hotswap.stream import publish_delta

__all__ = ["published", "stepped"]

_ELEMENT = np.uint16  # as wide as bf16


def stepped(tensors: Tensors, share: float, *, seed: int) -> Tensors:
    """Copies of which ``share`` of each tensor's elements, one at least, are a step further."""
    random = np.random.default_rng(seed)
    after: Tensors = {}
    for name, old in tensors.items():
        new = old.copy()
        elements = new.view(_ELEMENT)
        count = max(1, round(share * len(elements)))
        # With replacement, as it is drawn faster: an element that comes twice moves once.
        at = random.integers(0, len(elements), count)
        elements[at] += random.choice(np.array([1, 2**16 - 1], _ELEMENT), count)
        after[name] = new
    return after


def published(base: Path, share: float, *, xor: int, gap: int) -> tuple[Path, Path]:
    """Sources of ``xor`` and of ``gap`` versions on ``base``; made when absent."""
    root = BENCH_DIR / f"{base.name}-steps-{xor}-{gap}"
    if not root.is_dir():
        unfinished = root.with_name(f"{root.name}.{os.getpid()}.tmp")
        try:
            tensors = tensors_of(base)
            for version in range(1, max(xor, gap) + 1):
                after = stepped(tensors, share, seed=version)
                for encoding, last in (("xor", xor), ("gap", gap)):
                    if version <= last:
                        changes = [(name, tensors[name], after[name]) for name in tensors]
                        publish_delta(unfinished / encoding, version, [changes], encoding=encoding)
                tensors = after
            unfinished.rename(root)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return root / "xor", root / "gap"
