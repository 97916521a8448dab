"""The engine against transformers: logits to 1e-4 in float32, greedy tokens identical."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hotswap.engine import EmbeddedEngine
from hotswap.engine.loading import load_model
from hotswap.testing.checkpoints import make_checkpoint
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import generate_all, logits_of, prompts, random_ids

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
        "truncate": False,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn-attention": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.3,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "short_factor": [1.0 + 0.1 * index for index in range(8)],
        "long_factor": [2.0 + 0.3 * index for index in range(8)],
    },
}


def reference(directory: Path, *, dtype: torch.dtype = torch.float32) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager"
    )
    model.generation_config.eos_token_id = None
    return model.eval()


@torch.inference_mode()
def reference_logits(model: Any, ids: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


@torch.inference_mode()
def reference_tokens(model: Any, ids: list[int], count: int) -> list[int]:
    out = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
    )
    tokens: list[int] = out[0, len(ids) :].tolist()
    return tokens


def check_logits(directory: Path, *, length: int = 50) -> None:
    model, wanted = load_model(directory, device="cpu").model, reference(directory)
    ids = random_ids(length, below=model.config.vocab_size)
    expected = reference_logits(wanted, ids)
    assert expected.std() > 1.0
    torch.testing.assert_close(logits_of(model, ids), expected, atol=1e-4, rtol=0)
    if model.config.rope.changes_past is None:
        cut = logits_of(model, ids, cuts=(3, length - 2, length - 1))
        torch.testing.assert_close(cut, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("old_style", [False, True], ids=["rope_parameters", "rope_theta"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_logits_equal_transformers(
    arch: str, tied: bool, old_style: bool, checkpoint: Make
) -> None:
    check_logits(checkpoint(arch=arch, tied=tied, old_style=old_style, vocab_size=300, shards=2))


@pytest.mark.parametrize("old_style", [False, True], ids=["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("name", ROPES)
def test_rope_types_equal_transformers(name: str, old_style: bool, checkpoint: Make) -> None:
    # Dynamic rope starts at the configured maximum: the text has to be longer.
    longest = 40 if name == "dynamic" else 64
    directory = checkpoint(rope=ROPES[name], old_style=old_style, max_position_embeddings=longest)
    for length in (20, 60):
        check_logits(directory, length=length)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": ROPES["linear"]},
        {"rope_scaling": ROPES["yarn"] | {"rope_theta": 500.0}},
        {"rope_scaling": ROPES["llama3"], "rope_theta": 700.0},
        {"rope_scaling": ROPES["yarn"], "original_max_position_embeddings": 24},
        {"rope_scaling": None},
        {"rope_scaling": ROPES["yarn"] | {"beta_fast": 0}},
    ],
    ids=str,
)
def test_two_spellings_of_rope_equal_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    directory = make_checkpoint(
        tmp_path, rope={"rope_theta": 90.0, **ROPES["dynamic"]}, max_position_embeddings=64
    )
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    check_logits(directory)


def test_rope_type_changes_the_logits(checkpoint: Make) -> None:
    # Otherwise the test above would hold for an engine that ignores the type.
    ids = random_ids(60)
    seen = [
        logits_of(load_model(checkpoint(rope=rope, max_position_embeddings=40)).model, ids)
        for rope in ROPES.values()
    ]
    for index, logits in enumerate(seen):
        for other in seen[:index]:
            assert (logits - other).abs().max() > 1e-2


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_groups_of_heads_equal_transformers(num_kv_heads: int, checkpoint: Make) -> None:
    check_logits(checkpoint(arch="llama", num_kv_heads=num_kv_heads, head_dim=24))


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_biases_equal_transformers(arch: str, options: dict[str, bool], checkpoint: Make) -> None:
    check_logits(checkpoint(arch=arch, **options))


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_greedy_tokens_of_a_batch_equal_transformers(arch: str, checkpoint: Make) -> None:
    directory = checkpoint(arch=arch)
    many = prompts(12)
    wanted = reference(directory)
    async with EmbeddedEngine.from_directory(directory, max_running_requests=5) as engine:
        seen = await generate_all(engine, many, max_new_tokens=24)
    for ids, tokens in zip(many, seen, strict=True):
        assert tokens == reference_tokens(wanted, ids, 24)
    assert len({tuple(tokens) for tokens in seen}) == 12


def test_bfloat16_is_as_far_from_float32_as_transformers_is(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3", dtype=torch.bfloat16, num_layers=4)
    ids = random_ids(40)
    exact = reference_logits(reference(directory), ids)
    theirs = reference_logits(reference(directory, dtype=torch.bfloat16), ids).float()
    model = load_model(directory).model
    assert model.lm_head.weight.dtype is torch.bfloat16
    ours = logits_of(model, ids)
    assert (ours - exact).abs().mean() < 1.2 * (theirs - exact).abs().mean()
