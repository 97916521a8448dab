"""The checkpoints that the benchmarks swap: random weights, generated once.

A checkpoint is written beside its final name and renamed, so a directory that
exists is complete. Weights are ``normal * 0.02`` in bfloat16 with norms of one:
the values do not matter for speed, but the model has to run without NaN.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from contrib.bench.paths import BENCH_DIR

__all__ = ["LARGE", "MIDDLE", "TINY", "Shape", "checkpoint", "checkpoint_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A Qwen3 configuration, tied head, as few knobs as the sizes need."""

    name: str
    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    positions: int = 40960

    def config(self) -> dict[str, object]:
        """What ``config.json`` says."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.positions,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        }

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor, in checkpoint order."""
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            for name, shape in self._layer():
                yield f"model.layers.{layer}.{name}.weight", shape
        yield "model.norm.weight", (self.hidden,)

    def _layer(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "input_layernorm", (self.hidden,)
        yield "self_attn.q_proj", (queries, self.hidden)
        yield "self_attn.k_proj", (keys, self.hidden)
        yield "self_attn.v_proj", (keys, self.hidden)
        yield "self_attn.o_proj", (self.hidden, queries)
        yield "self_attn.q_norm", (self.head_dim,)
        yield "self_attn.k_norm", (self.head_dim,)
        yield "post_attention_layernorm", (self.hidden,)
        yield "mlp.gate_proj", (self.intermediate, self.hidden)
        yield "mlp.up_proj", (self.intermediate, self.hidden)
        yield "mlp.down_proj", (self.hidden, self.intermediate)


# Qwen3-0.6B with a smaller vocabulary: 501 M parameters, 1.00 GB in bfloat16.
LARGE = Shape(
    name="qwen3-1gb",
    hidden=1024,
    layers=28,
    intermediate=3072,
    heads=16,
    kv_heads=8,
    head_dim=128,
    vocabulary=59392,
)
# The same with fewer layers and words: 160 M parameters, 0.32 GB, for what is done over a network.
MIDDLE = replace(LARGE, name="qwen3-320mb", layers=8, vocabulary=33280)
# For soaks: 0.7 MB, so that two hundred updates take seconds.
TINY = Shape(
    name="qwen3-tiny",
    hidden=128,
    layers=2,
    intermediate=256,
    heads=4,
    kv_heads=2,
    head_dim=32,
    vocabulary=512,
    positions=2048,
)


def checkpoint(shape: Shape, label: str) -> Path:
    """Directory of the checkpoint ``label`` ("a", "b"); generated when absent."""
    directory = BENCH_DIR / f"{shape.name}-{label}"
    if not directory.is_dir():
        _generate(shape, directory, seed=ord(label))
    return directory


def checkpoint_bytes(directory: Path) -> int:
    """Bytes of the checkpoint's weight files."""
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def _generate(shape: Shape, directory: Path, *, seed: int) -> None:
    unfinished = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
    unfinished.mkdir(parents=True)
    try:
        generator = torch.Generator().manual_seed(seed)
        tensors = {name: _weights(size, generator) for name, size in shape.tensors()}
        save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})
        (unfinished / "config.json").write_text(json.dumps(shape.config(), indent=2))
        unfinished.rename(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _weights(size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if len(size) == 1:  # a norm; its seed shows in the last digits so that A and B differ
        return torch.empty(size).uniform_(0.95, 1.05, generator=generator).bfloat16()
    return torch.empty(size).normal_(0.0, 0.02, generator=generator).bfloat16()
