"""The small checkpoint and its versions that both sides are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import safetensors.numpy

from hotswap.stream import publish_delta
from hotswap.stream.encodings import Bytes
from hotswap.stream.stored import StoredTensors

__all__ = ["VERSIONS", "Tensors", "difference", "publish", "states", "write_base"]

Tensors: TypeAlias = Mapping[str, Bytes]

VERSIONS = 4
_SHAPES: Mapping[str, int] = {
    "model.embed_tokens.weight": 3_000_001,  # more than one block of every reader
    "model.layers.0.mlp.weight": 70_000,
    "model.layers.0.norm.weight": 64,
    "model.layers.1.mlp.weight": 70_002,
    "model.norm.weight": 2,
}
_LEFT_ALONE = "model.layers.1.mlp.weight"  # by every second version


def states() -> list[Tensors]:
    """The bytes of every tensor at versions 0 to ``VERSIONS``; the last version changes nothing."""
    random = np.random.default_rng(7)
    found: list[Tensors] = [
        {name: random.integers(0, 256, length, np.uint8) for name, length in _SHAPES.items()}
    ]
    for version in range(1, VERSIONS):
        found.append({name: _next(name, old, version) for name, old in found[-1].items()})
    return [*found, found[-1]]


def _next(name: str, old: Bytes, version: int) -> Bytes:
    if name == _LEFT_ALONE and version % 2:
        return old
    random = np.random.default_rng([version, len(old)])
    new = old.copy()
    at = random.integers(0, len(old), 1 + len(old) // 100)
    new[at] ^= random.integers(1, 256, len(at), np.uint8)
    return new


def write_base(directory: Path, tensors: Tensors) -> Path:
    """A checkpoint of one file, without an index."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text('{"model_type": "peers"}')
    safetensors.numpy.save_file(dict(tensors), directory / "model.safetensors")
    return directory


def publish(
    source: Path, all_states: Sequence[Tensors], *, encoding: str, checksum_format: str
) -> None:
    """Every version, by our publisher, in two files."""
    for version in range(1, len(all_states)):
        old, new = all_states[version - 1], all_states[version]
        parts = [[(name, old[name], new[name]) for name in list(old)[half::2]] for half in (0, 1)]
        publish_delta(source, version, parts, encoding=encoding, checksum_format=checksum_format)


def difference(directory: Path, tensors: Tensors) -> str | None:
    """The first tensor of a checkpoint that has other bytes than ``tensors``; None when none."""
    with StoredTensors.at(directory) as stored:
        if stored.tensors.keys() != tensors.keys():
            return f"tensors {sorted(stored.tensors)}"
        for name, tensor in stored.tensors.items():
            content = bytearray(tensor.span.length)
            tensor.read_into(memoryview(content))
            if content != tensors[name].tobytes():
                return f"tensor {name}"
    return None
