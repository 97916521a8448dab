"""After A, B and A again an engine shows what a fresh one shows, and what transformers says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

PROMPTS = [
    [7],
    [5, 6, 7, 8],
    list(range(1, 70)),
    [(7 * number) % 250 for number in range(40)],
    [(11 * number) % 250 for number in range(101)],
]
NEW_TOKENS = 24


def reference(directory: Path) -> list[list[int]]:
    """What ``generate`` says about every prompt, one after the other."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    texts = []
    for ids in PROMPTS:
        prompt = torch.tensor([ids])
        whole = model.eval().generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
        )
        texts.append(whole[0, len(ids) :].tolist())
    return texts


@pytest.fixture(autouse=True)
def _no_progress_bars() -> None:
    untyped: Any = transformers.utils.logging
    untyped.disable_progress_bar()


@pytest.mark.parametrize(
    ("arch", "tied"),
    [
        ("qwen3", True),
        pytest.param("llama", False, marks=pytest.mark.long),
        pytest.param("qwen2", False, marks=pytest.mark.long),
        pytest.param("llama", True, marks=pytest.mark.long),
    ],
)
async def test_from_a_to_b_to_a_equals_a_fresh_server_and_transformers(
    arch: str, tied: bool, drive: Any
) -> None:
    a, b = (drive.checkpoint(seed, arch=arch, tied=tied) for seed in (1, 2))
    fresh = {}
    for name, directory in (("a", a), ("b", b)):
        async with engine_on(directory) as engine:
            tokens = await drive.generate(engine, PROMPTS, max_new_tokens=NEW_TOKENS)
            fresh[name] = (tokens, await engine.checksums())
        assert tokens == reference(directory)
    changed = {name for name, value in fresh["b"][1].items() if fresh["a"][1][name] != value}
    assert all("rotary" in name for name in fresh["a"][1].keys() - changed)

    async with engine_on(a) as engine:
        places = [parameter.data_ptr() for parameter in engine.model.parameters()]
        for epoch, name in enumerate("bab", start=1):
            await drive.generate(engine, PROMPTS, max_new_tokens=3)
            await drive.update(engine, {"a": a, "b": b}[name], epoch=epoch)
            tokens = await drive.generate(engine, PROMPTS, max_new_tokens=NEW_TOKENS)
            assert (tokens, await engine.checksums()) == fresh[name]
        assert [parameter.data_ptr() for parameter in engine.model.parameters()] == places


def engine_on(directory: Path) -> Any:
    from hotswap_transformers import TransformersEngine

    return TransformersEngine.from_directory(
        directory, device="cpu", max_total_tokens=2048, chunked_prefill_size=48
    )
