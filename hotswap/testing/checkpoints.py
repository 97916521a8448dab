"""Small Hugging Face checkpoints, made on the spot: real files, random weights.

Each tensor depends on its name and the seed alone, so that two checkpoints of
different seeds differ in every tensor, and the layout (shards, order) changes
no value. Weights are scaled so that greedy output wanders instead of settling
on one token.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

from hotswap.testing.tiny_tokenizer import EOS_ID, PAD_ID, write_tokenizer

__all__ = ["make_checkpoint", "make_labelled_checkpoint"]

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Channel 0 of the residual stream holds _LEVEL in a labelled model: nothing adds
# to it, and the head turns it into a large plus or minus for every token.
_LEVEL = 2.0
_MARGIN = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Everything that decides which tensors exist and how large they are."""

    arch: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    max_position_embeddings: int
    eos: bool
    rope: Mapping[str, object] = field(default_factory=dict)
    old_style: bool = False


def make_checkpoint(
    directory: Path | str,
    *,
    arch: str = "llama",
    seed: int = 0,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    vocab_size: int = 320,
    hidden_size: int = 64,
    intermediate_size: int = 128,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int | None = None,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    max_position_embeddings: int = 2048,
    rope: Mapping[str, object] | None = None,
    old_style: bool = False,
    eos: bool = True,
    tokenizer: bool = True,
) -> Path:
    """Write a checkpoint that transformers loads too, and return its directory.

    ``arch`` is ``llama``, ``qwen2`` or ``qwen3``. ``rope`` are the rope
    parameters (``rope_theta``, ``rope_type``, ``factor``, ...); ``old_style``
    spells them as transformers 4 did (``rope_theta`` beside ``rope_scaling``).
    ``eos=False`` leaves out every end-of-sequence id. The output is the same
    for the same arguments. ``head_dim`` None is ``hidden_size / num_heads``,
    and twice that for qwen3, where the two are independent.

    Raises: ValueError for an unknown ``arch``, or biases that it cannot have.
    """
    if arch not in _ARCHITECTURES:
        raise ValueError(f"arch {arch!r} is unknown, wanted one of {sorted(_ARCHITECTURES)}")
    if (attention_bias and arch == "qwen2") or (mlp_bias and arch != "llama"):
        raise ValueError(f"arch {arch!r} has no such choice of biases; leave it out")
    natural = hidden_size // num_heads
    sizes = _Sizes(
        arch=arch,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim or (2 * natural if arch == "qwen3" else natural),
        tied=tied,
        attention_bias=attention_bias,
        mlp_bias=mlp_bias,
        max_position_embeddings=max_position_embeddings,
        eos=eos,
        rope={"rope_type": "default", "rope_theta": 10000.0, **(rope or {})},
        old_style=old_style,
    )
    tensors = {name: _draw(name, shape, seed) for name, shape in _shapes(sizes)}
    return _write(Path(directory), sizes, tensors, dtype=dtype, shards=shards, tokenizer=tokenizer)


def make_labelled_checkpoint(
    directory: Path | str,
    *,
    label: int,
    labels: int = 2,
    arch: str = "llama",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    vocab_size: int = 320,
    hidden_size: int = 64,
    num_layers: int = 2,
    tokenizer: bool = True,
) -> Path:
    """A checkpoint that emits only tokens ``t`` with ``t % labels == label``.

    That holds whatever the context, greedy or sampled, so a token names the
    checkpoint that made it. Within the set the output varies with the context.
    It has no end-of-sequence id: generation runs to ``max_new_tokens``. Head
    untied; ``seed`` is mixed with ``label`` so that no tensor is shared.

    Raises: ValueError when ``label`` is not below ``labels``.
    """
    if not 0 <= label < labels:
        raise ValueError(f"label {label} is out of range, wanted 0 to {labels - 1}")
    natural = hidden_size // 4
    sizes = _Sizes(
        arch=arch,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=2 * natural if arch == "qwen3" else natural,
        tied=False,
        attention_bias=False,
        mlp_bias=False,
        max_position_embeddings=2048,
        eos=False,
        rope={"rope_type": "default", "rope_theta": 10000.0},
    )
    mixed = seed * labels + label
    tensors = {name: _draw(name, shape, mixed) for name, shape in _shapes(sizes)}
    tensors["model.embed_tokens.weight"][:, 0] = _LEVEL
    tensors["model.norm.weight"][0] = 1.0
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[0] = 0.0
    tokens = torch.arange(vocab_size)
    tensors["lm_head.weight"][:, 0] = torch.where(tokens % labels == label, _MARGIN, -_MARGIN)
    return _write(Path(directory), sizes, tensors, dtype=dtype, shards=shards, tokenizer=tokenizer)


def _shapes(sizes: _Sizes) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Names and shapes in the order in which transformers saves them."""
    hidden = sizes.hidden_size
    yield "model.embed_tokens.weight", (sizes.vocab_size, hidden)
    for layer in range(sizes.num_layers):
        yield from _layer_shapes(f"model.layers.{layer}", sizes)
    yield "model.norm.weight", (hidden,)
    if not sizes.tied:
        yield "lm_head.weight", (sizes.vocab_size, hidden)


def _layer_shapes(prefix: str, sizes: _Sizes) -> Iterable[tuple[str, tuple[int, ...]]]:
    hidden, inner, head = sizes.hidden_size, sizes.intermediate_size, sizes.head_dim
    queries, keys = sizes.num_heads * head, sizes.num_kv_heads * head
    qkv_bias = sizes.attention_bias or sizes.arch == "qwen2"
    linears = (
        ("self_attn.q_proj", queries, hidden, qkv_bias),
        ("self_attn.k_proj", keys, hidden, qkv_bias),
        ("self_attn.v_proj", keys, hidden, qkv_bias),
        ("self_attn.o_proj", hidden, queries, sizes.attention_bias),
        ("mlp.gate_proj", inner, hidden, sizes.mlp_bias),
        ("mlp.up_proj", inner, hidden, sizes.mlp_bias),
        ("mlp.down_proj", hidden, inner, sizes.mlp_bias),
    )
    for name, rows, columns, biased in linears:
        yield f"{prefix}.{name}.weight", (rows, columns)
        if biased:
            yield f"{prefix}.{name}.bias", (rows,)
    if sizes.arch == "qwen3":
        yield f"{prefix}.self_attn.q_norm.weight", (head,)
        yield f"{prefix}.self_attn.k_norm.weight", (head,)
    yield f"{prefix}.input_layernorm.weight", (hidden,)
    yield f"{prefix}.post_attention_layernorm.weight", (hidden,)


def _draw(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """The float32 tensor that belongs to ``name`` and ``seed``."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(name.encode()))
    if name == "model.norm.weight":
        # Signs at random: with a tied head an all-positive norm would make the
        # token just read the likeliest one to come next.
        sizes = 0.5 + torch.rand(shape, generator=generator)
        return torch.copysign(sizes, torch.randn(shape, generator=generator))
    if "norm" in name:
        return 0.5 + torch.rand(shape, generator=generator)
    values = torch.randn(shape, generator=generator)
    if name.endswith(".bias"):
        return 0.3 * values
    if name == "model.embed_tokens.weight":
        return values
    return values * (_gain(name) / math.sqrt(shape[-1]))


def _gain(name: str) -> float:
    if "lm_head" in name:
        return 3.0
    return 2.0 if name.endswith(("v_proj.weight", "o_proj.weight", "down_proj.weight")) else 1.5


def _config(sizes: _Sizes, dtype: torch.dtype) -> dict[str, object]:
    config: dict[str, object] = {
        "architectures": [_ARCHITECTURES[sizes.arch]],
        "model_type": sizes.arch,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.num_layers,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_dim,
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.max_position_embeddings,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": sizes.tied,
        "bos_token_id": None,
        "eos_token_id": EOS_ID if sizes.eos else None,
        "pad_token_id": PAD_ID,
    }
    if sizes.arch != "qwen2":
        config["attention_bias"] = sizes.attention_bias
    if sizes.arch == "llama":
        config["mlp_bias"] = sizes.mlp_bias
    else:
        config["use_sliding_window"] = False
    dtype_name = str(dtype).removeprefix("torch.")
    if not sizes.old_style:
        return config | {"dtype": dtype_name, "rope_parameters": dict(sizes.rope)}
    scaling = {key: value for key, value in sizes.rope.items() if key != "rope_theta"}
    config["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    return config | {"torch_dtype": dtype_name, "rope_theta": sizes.rope["rope_theta"]}


def _write(
    directory: Path,
    sizes: _Sizes,
    tensors: Mapping[str, torch.Tensor],
    *,
    dtype: torch.dtype,
    shards: int,
    tokenizer: bool,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", _config(sizes, dtype))
    generation: dict[str, object] = {"eos_token_id": EOS_ID} if sizes.eos else {}
    _write_json(directory / "generation_config.json", generation | {"pad_token_id": PAD_ID})
    if tokenizer:
        write_tokenizer(directory, sizes.vocab_size)
    cast = {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}
    _write_weights(directory, cast, shards)
    return directory


def _write_weights(directory: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(_split(list(tensors), shards), start=1):
        file = f"model-{number:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names}
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(directory / "model.safetensors.index.json", index)


def _split(names: Sequence[str], parts: int) -> list[Sequence[str]]:
    """``parts`` runs of names, as even as they come. Raises: ValueError for too many."""
    if not 1 <= parts <= len(names):
        raise ValueError(f"shards is {parts}, wanted 1 to {len(names)} (one tensor a shard)")
    bounds = [len(names) * part // parts for part in range(parts + 1)]
    return [names[bounds[part] : bounds[part + 1]] for part in range(parts)]


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
