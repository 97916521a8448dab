"""The engine on CUDA gives what it gives on the CPU, before and after a swap."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.engine.loading import load_model
from hotswap.testing.checkpoints import make_checkpoint
from hotswap.types import PauseMode, WeightStamp
from tests.unit.engine.driving import (
    generate_all,
    load_while_paused,
    logits_of,
    prompts,
    random_ids,
)

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_logits_equal_those_of_the_cpu(arch: str, tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, arch=arch, vocab_size=300)
    ids = random_ids(60)
    on_cpu, on_device = (
        logits_of(load_model(directory, device=device).model, ids, cuts=(40, 58, 59)).cpu()
        for device in ("cpu", DEVICE)
    )
    torch.testing.assert_close(on_device, on_cpu, atol=1e-3, rtol=0)


async def test_swapped_equals_fresh_on_the_device_and_on_the_cpu(tmp_path: Path) -> None:
    a, b = (make_checkpoint(tmp_path / str(seed), arch="qwen3", seed=seed) for seed in (0, 1))
    async with EmbeddedEngine.from_directory(b, device="cpu") as engine:
        wanted = await engine.checksums(), await generate_all(engine, prompts(8), max_new_tokens=16)
    async with EmbeddedEngine.from_directory(a, device=DEVICE) as engine:
        assert str(engine.describe()["device"]).startswith(DEVICE)
        before = {name: p.data_ptr() for name, p in engine.model.named_parameters()}
        assert await generate_all(engine, prompts(8), max_new_tokens=16) != wanted[1]
        await engine.pause(PauseMode.ABORT)
        await load_while_paused(engine, b, WeightStamp(epoch=1))
        await engine.resume()
        tokens = await generate_all(engine, prompts(8), max_new_tokens=16)
        sums = await engine.checksums()
        assert {name: p.data_ptr() for name, p in engine.model.named_parameters()} == before
    assert tokens == wanted[1]
    frequencies = "model.rotary_emb.inv_freq"
    assert {k: v for k, v in sums.items() if k != frequencies} == {
        k: v for k, v in wanted[0].items() if k != frequencies
    }
