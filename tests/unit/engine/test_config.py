from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from hotswap.engine.config import ModelConfig, differences, parse_config
from hotswap.engine.rope_parameters import RopeType
from tests.unit.engine.conftest import Make

BASE: Mapping[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "eos_token_id": [1, 2],
}
LLAMA = {**BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN2 = {**BASE, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}


def without(*names: str, base: Mapping[str, object] = BASE) -> dict[str, object]:
    return {name: value for name, value in base.items() if name not in names}


def test_every_field_is_read() -> None:
    config = parse_config(BASE)
    assert config.architecture == "Qwen3ForCausalLM"
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (2, 64, 128)
    assert (config.num_attention_heads, config.num_kv_heads, config.head_dim) == (4, 2, 32)
    assert config.vocab_size == 320
    assert config.tie_word_embeddings is False
    assert config.rms_norm_eps == 1e-6
    assert config.rope.rope_theta == 1000000.0
    assert config.dtype is torch.bfloat16
    assert config.eos_token_ids == {1, 2}
    assert config.qk_norm
    assert not config.qkv_bias


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("rope", [None, {"rope_type": "linear", "factor": 3.0}])
def test_both_spellings_of_rope_are_the_same_model(
    arch: str, rope: dict[str, Any] | None, checkpoint: Make
) -> None:
    new, old = (
        parse_config(
            json.loads(
                (checkpoint(arch=arch, rope=rope, old_style=old) / "config.json").read_text()
            )
        )
        for old in (False, True)
    )
    assert new == old


def test_defaults_are_those_of_each_architecture() -> None:
    bare = without("head_dim", "num_key_value_heads", "max_position_embeddings", "rope_theta")
    llama = parse_config(bare | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    assert (llama.head_dim, llama.num_kv_heads, llama.max_position_embeddings) == (16, 4, 2048)
    assert llama.rope.rope_theta == 10000.0
    qwen3 = parse_config(bare | {"num_attention_heads": 64})
    assert (qwen3.head_dim, qwen3.num_kv_heads, qwen3.max_position_embeddings) == (128, 32, 32768)


def test_biases_of_each_architecture() -> None:
    asked = {"attention_bias": True, "mlp_bias": True}
    seen = {
        config.model_type: (config.qkv_bias, config.o_bias, config.mlp_bias)
        for config in (parse_config(base | asked) for base in (LLAMA, QWEN2, dict(BASE)))
    }
    assert seen == {
        "llama": (True, True, True),
        "qwen2": (True, False, False),
        "qwen3": (True, True, False),
    }
    assert parse_config(QWEN2).qkv_bias


def test_model_type_alone_and_architectures_alone_will_do() -> None:
    assert parse_config(without("architectures")) == parse_config(BASE)
    assert parse_config(without("model_type")) == parse_config(BASE)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ({"architectures": ["Qwen3ForCausalLM", "LlamaForCausalLM"]}, "architectures"),
        ({"architectures": None, "model_type": "gpt2"}, "gpt2"),
        ({"architectures": None, "model_type": None}, "model_type"),
        ({"model_type": "llama"}, "contradict"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, "sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "mrope"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor"),
        ({"rope_scaling": [1]}, "rope parameters"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 1.0}}}, "sliding_attention"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "full_attention"),
        ({"rope_parameters": {"full_attention": 3}}, "rope parameters"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "short_factor"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": ["a"] * 16}},
            "short_factor",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 1}}, "truncate"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": 3.5}, "vocab_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 33}, "head_dim"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
        ({"eos_token_id": ["x"]}, "eos_token_id"),
    ],
)
def test_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_config({**BASE, **change})


def test_of_two_spellings_of_rope_rope_scaling_counts() -> None:
    new = {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}
    bare = without("rope_theta") | {"rope_parameters": new}
    assert parse_config(bare).rope.rope_theta == 7.0
    assert parse_config(bare | {"rope_scaling": None}) == parse_config(bare)
    assert parse_config(bare | {"rope_scaling": {}}) == parse_config(bare)
    old: dict[str, object] = {"type": "yarn", "factor": 4.0}
    both = parse_config(bare | {"rope_scaling": old})
    # All of it: a theta that the other one has does not count.
    assert both == parse_config(without("rope_theta") | {"rope_scaling": old})
    assert both.rope.rope_theta == 10000.0
    outer = parse_config(bare | {"rope_scaling": old, "rope_theta": 9.0})
    assert outer.rope.rope_theta == 9.0
    inner = parse_config(bare | {"rope_scaling": old | {"rope_theta": 8.0}, "rope_theta": 9.0})
    assert inner.rope.rope_theta == 8.0


def test_zero_turns_of_yarn_are_the_default() -> None:
    yarn: dict[str, object] = {"type": "yarn", "factor": 4.0}
    wanted = parse_config({**BASE, "rope_scaling": yarn})
    zero = yarn | {"beta_fast": 0, "beta_slow": 0}
    assert parse_config({**BASE, "rope_scaling": zero}) == wanted


def test_kv_heads_that_are_null_are_as_many_as_heads() -> None:
    for base in (LLAMA, QWEN2, BASE):
        assert parse_config({**base, "num_key_value_heads": None}).num_kv_heads == 4


_HUGE = 10**400


def _rope(kind: str, **fields: object) -> dict[str, object]:
    return {"rope_scaling": {"type": kind, "factor": 2.0, **fields}}


_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONG = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vocab_size": 10**13}, "vocab_size is 10000000000000, wanted a positive integer up to"),
        ({"hidden_size": _HUGE}, r"hidden_size is 10*\.\.\., wanted a positive"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, wanted .* up to 10000"),
        (
            {"rms_norm_eps": _HUGE},
            r"rms_norm_eps is 10*\.\.\., wanted a finite number of at least 0",
        ),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06, wanted a finite number of at least 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, wanted a finite"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf, wanted a finite"),
        ({"rope_theta": 0}, "rope_theta is 0, wanted a finite number above 0"),
        ({"rope_theta": _HUGE}, "rope_theta is 10.*wanted a finite"),
        (_rope("linear", rope_theta=-1.0), "rope_theta is -1.0, wanted"),
        (_rope("linear", factor=0), "factor is 0, wanted a finite number of at least 1"),
        (_rope("dynamic", factor=0.5), "factor is 0.5, wanted"),
        (_rope("dynamic") | {"head_dim": 2}, "head_dim is 2, wanted 4 or more"),
        (_rope("yarn", factor=float("inf")), "factor is inf, wanted"),
        (_rope("yarn", rope_theta=1), "rope_theta is 1.0, wanted above 1 for yarn"),
        (_rope("yarn", beta_fast=-1), "beta_fast is -1, wanted"),
        (_rope("yarn", mscale=-1.0, mscale_all_dim=1.0), "mscale is -1.0, wanted"),
        (_rope("yarn", attention_factor=0), "attention_factor is 0, wanted"),
        (_rope("llama3", **_LLAMA3 | {"low_freq_factor": 0}), "low_freq_factor is 0, wanted"),
        (
            _rope("llama3", **_LLAMA3 | {"high_freq_factor": 1.0}),
            "high_freq_factor is 1.0, wanted a finite number above 1",
        ),
        (
            _rope("longrope", original_max_position_embeddings=1, **_LONG),
            "original_max_position_embeddings is 1, wanted 2 or more",
        ),
        (
            _rope("longrope", **_LONG | {"long_factor": [0.0] * 16}),
            "long_factor is .*wanted 16 finite numbers above 0",
        ),
    ],
)
def test_values_out_of_range_are_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_config({**BASE, **change})


def test_a_sliding_window_that_no_layer_uses_is_full_attention() -> None:
    unused = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2}
    assert parse_config({**BASE, **unused}) == parse_config(BASE)
    off = {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 0}
    assert parse_config({**BASE, **off}) == parse_config(BASE)


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        (None, 2048),
        ({"rope_type": "linear", "factor": 2.0}, 4096),
        ({"rope_type": "dynamic", "factor": 4.0}, 8192),
        ({"rope_type": "yarn", "factor": 4.0}, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4},
            2048,
        ),
    ],
)
def test_the_context_reaches_as_far_as_rope_is_scaled(
    scaling: dict[str, object] | None, longest: int
) -> None:
    assert parse_config({**BASE, "rope_scaling": scaling}).max_context == longest


_OTHER: dict[str, object] = {
    "model_type": "llama",
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "qkv_bias": True,
    "o_bias": True,
    "mlp_bias": True,
}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in ModelConfig.__dataclass_fields__
        if name not in ("rope", "dtype", "eos_token_ids")
    ],
)
def test_a_difference_in_any_field_is_named(name: str) -> None:
    live = parse_config(BASE)
    value = _OTHER[name] if name in _OTHER else getattr(live, name) * 2
    change: dict[str, Any] = {name: value}
    seen = replace(live, **change)
    assert len(differences(seen, live)) == 1
    assert differences(seen, live)[0] == f"{name} is {value}, wanted {getattr(live, name)}"


def test_a_difference_in_rope_is_named() -> None:
    live = parse_config(BASE)
    seen = replace(live, rope=replace(live.rope, rope_type=RopeType.YARN, factor=4.0))
    assert differences(seen, live) == [
        "rope_type is yarn, wanted default",
        "factor is 4.0, wanted 1.0",
    ]


def test_what_changes_no_forward_pass_may_differ() -> None:
    live = parse_config(BASE)
    seen = replace(live, dtype=torch.float32, eos_token_ids=frozenset())
    assert differences(seen, live) == []
