"""A model is served only if a batch computes what the model computes alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hotswap_transformers import TransformersEngine
from hotswap_transformers.loading import load_model

_SMALL = {"vocab_size": 96, "hidden_size": 32}


def saved(path: Path, arch: str, fields: Mapping[str, object]) -> Path:
    """A tiny model whose logits depend on everything that it sees."""
    torch.manual_seed(0)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(transformers.AutoConfig.for_model(arch, **fields))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("arch", "fields", "why"),
    [
        (
            "gpt_neo",
            {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]},
            "computes GPTNeoForCausalLM otherwise in a batch than alone",
        ),
        ("opt", {"num_hidden_layers": 1, "num_attention_heads": 2}, "cannot batch OPTForCausalLM"),
        ("mamba", {"num_hidden_layers": 1}, "MambaForCausalLM has no attention heads"),
    ],
)
def test_what_it_cannot_batch_is_refused(
    arch: str, fields: Mapping[str, object], why: str, tmp_path: Path
) -> None:
    if arch == "opt":
        fields = {**fields, "word_embed_proj_dim": 32, "ffn_dim": 32}
    directory = saved(tmp_path, arch, {**_SMALL, "max_position_embeddings": 64, **fields})
    with pytest.raises(ValueError, match=why):
        TransformersEngine.from_directory(directory, device="cpu", max_total_tokens=512)


def test_a_model_that_does_not_run_at_all_is_refused(drive: Any) -> None:
    loaded = load_model(drive.checkpoint(1), device="cpu")
    loaded.model.model.norm = torch.nn.LayerNorm(7)
    with pytest.raises(ValueError, match="LlamaForCausalLM cannot be run"):
        TransformersEngine(loaded, max_total_tokens=512)


async def test_nothing_of_the_trial_is_left(drive: Any) -> None:
    async with drive.running() as engine:
        load = engine.load
        assert (load.running, load.kv_tokens_used, load.cache_hits, load.cache_misses) == (0,) * 4
        assert await engine.flush() == 0
