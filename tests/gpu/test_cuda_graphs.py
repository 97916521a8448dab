"""Captured decode steps on CUDA: captured once, and right for the weights of every update."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.testing.checkpoints import make_checkpoint
from hotswap.types import PauseMode, WeightStamp
from tests.unit.engine.driving import generate_all, load_while_paused, prompts

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
async def test_graphs_give_the_tokens_of_eager_passes_after_a_swap(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (make_checkpoint(tmp_path / str(seed), arch=arch, seed=seed) for seed in (0, 1))
    wanted = []
    for directory in (a, b):
        async with EmbeddedEngine.from_directory(
            directory, device="cuda", disable_cuda_graph=True
        ) as engine:
            assert engine.describe()["cuda_graphs"] is False
            wanted.append(await generate_all(engine, prompts(7), max_new_tokens=16))
    async with EmbeddedEngine.from_directory(a, device="cuda", max_running_requests=5) as engine:
        assert engine.describe()["cuda_graphs"] is True
        # From here on nothing may be captured.
        monkeypatch.delattr(torch.cuda, "graph")
        assert await generate_all(engine, prompts(7), max_new_tokens=16) == wanted[0]
        await engine.pause(PauseMode.ABORT)
        await load_while_paused(engine, b, WeightStamp(epoch=1))
        await engine.resume()
        assert await generate_all(engine, prompts(7), max_new_tokens=16) == wanted[1]
