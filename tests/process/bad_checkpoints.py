"""Checkpoints that a server of an untied tiny Llama has to refuse, and what it must say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.process.checkpoint_edits import Tensors, edited, shard_names, tensors_of, write_index

__all__ = ["FAULTS", "Fault"]

LAST = "model.layers.1.mlp.down_proj.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"
EMBED = "model.embed_tokens.weight"
Q, K = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")
FIRST_SHARD, SECOND_SHARD = shard_names(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``make(good, directory)`` writes the bad one; the refusal has every word of ``says``.

    ``in_tensors``: it is in the tensors themselves, however they are delivered; others are in
    files or in a configuration, which a push does not have.
    """

    make: Callable[[Path, Path], object]
    says: tuple[str, ...]
    in_tensors: bool = False


def _tensors(
    edit: Callable[[Tensors], object], *says: str, config: Mapping[str, object] | None = None
) -> Fault:
    """In the second of two shards, wherever the edit puts it in the files' order."""

    def make(good: Path, directory: Path) -> None:
        edited(good, directory, edit, config=config, shards=2)

    return Fault(make=make, says=says, in_tensors=config is None)


def _files(break_it: Callable[[Path], object], *says: str) -> Fault:
    """Two good shards with an index, and then something done to the files."""

    def make(good: Path, directory: Path) -> None:
        edited(good, directory, shards=2)
        break_it(directory)

    return Fault(make=make, says=says)


def _put(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.__setitem__(name, change(tensors[name]))


def _with_prefix(tensors: Tensors) -> None:
    renamed = {f"module.{name}": tensor for name, tensor in tensors.items()}
    tensors.clear()
    tensors.update(renamed)


def _keep_only_q(tensors: Tensors) -> None:
    for part in ("k", "v"):
        for kind in [name for name in tensors if f"{part}_proj" in name]:
            del tensors[kind]


def _truncate(directory: Path) -> None:
    shard = directory / SECOND_SHARD
    shard.write_bytes(shard.read_bytes()[:-100])


def _index_lacks_its_tensor(directory: Path) -> None:
    first = dict.fromkeys(tensors_of(directory), FIRST_SHARD)
    write_index(directory, first)


def _twice_and_no_index(directory: Path) -> None:
    (directory / "model.safetensors.index.json").unlink()
    save_file({LAST: tensors_of(directory)[LAST]}, directory / "old.safetensors")


def _empty_header(directory: Path) -> None:
    (directory / "model.safetensors.index.json").unlink()
    for shard in (FIRST_SHARD, SECOND_SHARD):
        (directory / shard).unlink()
    (directory / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


FAULTS: Mapping[str, Fault] = {
    "A1-second-shard-has-a-wrong-shape": _tensors(
        _put(LAST, lambda tensor: torch.cat([tensor, tensor[:1]])), LAST, "[65, 128]", "[64, 128]"
    ),
    "A1-second-shard-is-truncated": _files(_truncate, SECOND_SHARD),
    "A6-every-name-has-a-prefix": _tensors(_with_prefix, f"module.{HEAD}", HEAD, NORM),
    "A6-one-name-is-unknown": _tensors(
        lambda tensors: tensors.update({"extra.weight": torch.ones(2)}), "extra.weight"
    ),
    "A6-no-tensor-at-all": _files(_empty_header, "holds 0 tensors"),
    "A7-untied-and-no-head": _tensors(lambda tensors: tensors.pop(HEAD), HEAD),
    "A8-q-without-k-and-v": _tensors(_keep_only_q, K),
    "A25-an-integer-tensor": _tensors(_put(NORM, lambda tensor: tensor.long()), NORM, "int64"),
    "A25-a-boolean-tensor": _tensors(_put(NORM, lambda tensor: tensor > 0), NORM, "bool"),
    "A25-a-column-for-a-vector": _tensors(
        _put(NORM, lambda tensor: tensor[:, None]), NORM, "64, 1"
    ),
    "A25-fewer-vocabulary-rows": _tensors(
        _put(HEAD, lambda tensor: tensor[:256]), HEAD, "[256, 64]"
    ),
    "A25-another-vocabulary": _tensors(
        lambda tensors: tensors.update({name: tensors[name][:256] for name in (EMBED, HEAD)}),
        "vocab_size",
        "256",
        "320",
        config={"vocab_size": 256},
    ),
    "config-of-another-model": _tensors(
        lambda tensors: None, "num_layers", "3", config={"num_hidden_layers": 3}
    ),
    "config-of-another-rotation": _tensors(
        lambda tensors: None,
        "theta",
        config={"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
    ),
    "A29-index-names-a-missing-shard": _files(
        lambda directory: (directory / SECOND_SHARD).unlink(), SECOND_SHARD
    ),
    "A29-shard-lacks-an-indexed-tensor": _files(_index_lacks_its_tensor, FIRST_SHARD, "index"),
    "A29-twice-and-no-index": _files(_twice_and_no_index, LAST, "old.safetensors"),
    "no-directory": Fault(make=lambda good, directory: None, says=("directory",)),
}
