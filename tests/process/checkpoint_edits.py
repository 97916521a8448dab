"""Checkpoints made from others: tensors, configuration and files as a test wants them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file, save_file

__all__ = ["Tensors", "edited", "shard_names", "tensors_of", "write_index"]

Tensors: TypeAlias = dict[str, torch.Tensor]


def tensors_of(directory: Path) -> Tensors:
    """Every tensor of the safetensors files of a directory."""
    found: Tensors = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= load_file(file)
    return found


def shard_names(count: int) -> list[str]:
    """File names as Hugging Face gives them."""
    return [f"model-{at:05d}-of-{count:05d}.safetensors" for at in range(1, count + 1)]


def edited(
    source: Path,
    directory: Path,
    edit: Callable[[Tensors], object] = lambda _tensors: None,
    *,
    config: Mapping[str, object] | None = None,
    shards: int = 1,
) -> Path:
    """Write ``source``'s tensors after ``edit``, and its config with ``config`` over it."""
    directory.mkdir(parents=True)
    tensors = tensors_of(source)
    edit(tensors)
    told: dict[str, Any] = json.loads((source / "config.json").read_text()) | dict(config or {})
    (directory / "config.json").write_text(json.dumps(told))
    shutil.copy(source / "tokenizer.json", directory)
    names = shard_names(shards) if shards > 1 else ["model.safetensors"]
    weight_map: dict[str, str] = {}
    for name, part in zip(names, _split(tensors, shards), strict=True):
        save_file({key: value.contiguous() for key, value in part.items()}, directory / name)
        weight_map |= dict.fromkeys(part, name)
    if shards > 1:
        write_index(directory, weight_map)
    return directory


def write_index(directory: Path, weight_map: Mapping[str, str]) -> None:
    """Say which file each tensor comes from."""
    index = {"metadata": {"total_size": 0}, "weight_map": dict(weight_map)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _split(tensors: Tensors, parts: int) -> Iterator[Tensors]:
    names = list(tensors)
    for part in range(parts):
        chosen = names[len(names) * part // parts : len(names) * (part + 1) // parts]
        yield {name: tensors[name] for name in chosen}
