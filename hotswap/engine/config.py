"""The model configuration: what the forward pass reads, and nothing else.

What the engine does not do exactly as the checkpoint asks is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch

from hotswap.engine.config_fields import Fields
from hotswap.engine.rope_parameters import RopeParameters, parse_rope

__all__ = ["ModelConfig", "differences", "parse_config"]

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
# Every layer is built before a single weight is looked for.
_MOST_LAYERS = 10_000
# Differences in these change no forward pass: the live ones stay.
_FREE_TO_DIFFER = frozenset({"dtype", "eos_token_ids"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A checked ``config.json`` of Llama, Qwen2 or Qwen3."""

    model_type: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool
    intermediate_size: int
    rms_norm_eps: float
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    max_position_embeddings: int
    rope: RopeParameters
    dtype: torch.dtype
    eos_token_ids: frozenset[int]

    @property
    def architecture(self) -> str:
        """The class name that Hugging Face gives the model."""
        return _ARCHITECTURES[self.model_type]

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised, head by head."""
        return self.model_type == "qwen3"

    @property
    def max_context(self) -> int:
        """Most tokens that a prompt and its output may have together."""
        return self.rope.reach(self.max_position_embeddings)


def parse_config(config: Mapping[str, object]) -> ModelConfig:
    """Check and read a ``config.json``.

    Raises: ValueError naming what is missing, of the wrong kind, or not supported.
    """
    read = Fields(config)
    model_type = _model_type(config)
    _refuse_unsupported(config, model_type)
    hidden, heads = read.count("hidden_size"), read.count("num_attention_heads")
    head_dim = read.count("head_dim", 128 if model_type == "qwen3" else hidden // heads)
    # Null means as many as heads; left out, each architecture has its own default.
    is_left_out = model_type != "llama" and "num_key_value_heads" not in config
    kv_heads = read.count("num_key_value_heads", 32 if is_left_out else heads)
    if heads % kv_heads:
        raise ValueError(
            f"config.json: num_attention_heads is {heads}, wanted a multiple of "
            f"num_key_value_heads, which is {kv_heads}"
        )
    if head_dim % 2:
        raise ValueError(f"config.json: head_dim is {head_dim}, wanted an even number")
    max_positions = read.count("max_position_embeddings", 2048 if model_type == "llama" else 32768)
    attention_bias = read.flag("attention_bias", False)
    return ModelConfig(
        model_type=model_type,
        num_layers=read.count("num_hidden_layers", most=_MOST_LAYERS),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=read.count("vocab_size"),
        tie_word_embeddings=read.flag("tie_word_embeddings", False),
        intermediate_size=read.count("intermediate_size"),
        rms_norm_eps=read.number("rms_norm_eps", 1e-6, least=0),
        # Qwen2 has biases on q, k and v always, and reads no field for it.
        qkv_bias=model_type == "qwen2" or attention_bias,
        o_bias=model_type != "qwen2" and attention_bias,
        mlp_bias=model_type == "llama" and read.flag("mlp_bias", False),
        max_position_embeddings=max_positions,
        rope=parse_rope(config, max_positions=max_positions, head_dim=head_dim),
        dtype=_dtype(config),
        eos_token_ids=read.token_ids("eos_token_id"),
    )


def _model_type(config: Mapping[str, object]) -> str:
    wanted = f"wanted one of {', '.join(_ARCHITECTURES.values())}"
    named = config.get("architectures")
    if named is not None:
        found = [key for key, name in _ARCHITECTURES.items() if named == [name]]
        if not found:
            raise ValueError(f"config.json: architectures {named!r} not supported, {wanted}")
        if config.get("model_type", found[0]) != found[0]:
            raise ValueError(
                f"config.json: architectures {named!r} and model_type "
                f"{config['model_type']!r} contradict each other; {wanted}"
            )
        return found[0]
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in _ARCHITECTURES:
        raise ValueError(f"config.json: model_type {model_type!r} is not supported, {wanted}")
    return model_type


def _refuse_unsupported(config: Mapping[str, object], model_type: str) -> None:
    if config.get("quantization_config") is not None:
        raise ValueError(
            "config.json: quantization_config is set, and quantised weights are not supported; "
            "use a checkpoint in bfloat16, float16 or float32"
        )
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ValueError(f"config.json: hidden_act {activation!r} is not supported, wanted 'silu'")
    if model_type != "llama" and _slides(config):
        raise ValueError(
            "config.json: sliding window attention is in use (use_sliding_window, layer_types), "
            "and is not supported; wanted full attention in every layer"
        )


def _slides(config: Mapping[str, object]) -> bool:
    read = Fields(config)
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list):
        return any(kind != "full_attention" for kind in layer_types)
    if not read.flag("use_sliding_window", False) or config.get("sliding_window", 4096) is None:
        return False
    full_layers = config.get("max_window_layers", 28)
    return not isinstance(full_layers, int) or read.count("num_hidden_layers") > full_layers


def _dtype(config: Mapping[str, object]) -> torch.dtype:
    name = config.get("dtype") or config.get("torch_dtype") or "float32"
    dtype = _DTYPES.get(str(name).removeprefix("torch."))
    if dtype is None:
        wanted = ", ".join(_DTYPES)
        raise ValueError(f"config.json: dtype {name!r} is not supported, wanted one of {wanted}")
    return dtype


def differences(seen: ModelConfig, wanted: ModelConfig) -> list[str]:
    """Every field in which ``seen`` would run another forward pass than ``wanted``."""
    pairs = [
        (field.name, getattr(seen, field.name), getattr(wanted, field.name))
        for field in fields(ModelConfig)
        if field.name not in _FREE_TO_DIFFER | {"rope"}
    ]
    pairs += [
        (field.name, getattr(seen.rope, field.name), getattr(wanted.rope, field.name))
        for field in fields(RopeParameters)
    ]
    return [
        f"{name} is {_shown(found)}, wanted {_shown(live)}"
        for name, found, live in pairs
        if found != live
    ]


def _shown(value: object) -> str:
    return str(value) if isinstance(value, str) else repr(value)
