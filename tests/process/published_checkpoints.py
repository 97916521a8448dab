"""Whole checkpoints as the versions of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.unit.stream.streams import Tensors, contents_of, publish

__all__ = ["publish_checkpoints"]


def publish_checkpoints(
    source: Path, checkpoints: Sequence[Path], encodings: Sequence[str] = ("xor", "overwrite")
) -> Path:
    """Publish each of ``checkpoints`` but the first, which is version 0, on the one before it."""
    arrays = [_arrays(checkpoint) for checkpoint in checkpoints]
    for number, (old, new) in enumerate(pairwise(arrays), start=1):
        publish(source, number, old, new, encoding=encodings[(number - 1) % len(encodings)])
    return source


def _arrays(checkpoint: Path) -> Tensors:
    return {name: np.frombuffer(b, np.uint8) for name, b in contents_of(checkpoint).items()}
