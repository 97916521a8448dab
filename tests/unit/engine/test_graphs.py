"""Captured decode steps, with a capture that does the work again: all but CUDA itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.engine.graphs import DecodeGraphs, graph_sizes, use_cuda_graphs
from hotswap.engine.loading import load_model
from hotswap.types import PauseMode, WeightStamp
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import generate_all, load_while_paused, prompts


class Replays:
    """Captures by keeping the work; counts what is run again."""

    def __init__(self) -> None:
        self.count = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()

        def replay() -> None:
            self.count += 1
            work()

        return replay


@pytest.mark.parametrize(
    ("max_running", "sizes"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 4, 8]), (8, [1, 2, 4, 8])]
)
def test_sizes_are_powers_of_two(max_running: int, sizes: list[int]) -> None:
    assert graph_sizes(max_running) == sizes


def test_none_are_captured_on_a_cpu(checkpoint: Make) -> None:
    model = load_model(checkpoint(), device="cpu").model
    assert not use_cuda_graphs(model, max_running=4)
    assert model.model.graphs is None


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
async def test_tokens_are_those_of_the_eager_pass_before_and_after_a_swap(
    arch: str, checkpoint: Make
) -> None:
    a, b = checkpoint(arch=arch, seed=1), checkpoint(arch=arch, seed=2)
    wanted = []
    for directory in (a, b):
        async with EmbeddedEngine.from_directory(directory, device="cpu") as engine:
            wanted.append(await generate_all(engine, prompts(7), max_new_tokens=12))
    replays = Replays()
    async with EmbeddedEngine.from_directory(a, device="cpu", max_running_requests=5) as engine:
        decoder = engine.model.model
        with torch.inference_mode():
            decoder.graphs = DecodeGraphs(decoder, sizes=graph_sizes(5), capture=replays.capture)
        assert await generate_all(engine, prompts(7), max_new_tokens=12) == wanted[0]
        assert replays.count > 0
        assert replays.count % (len(decoder.layers) + 1) == 0
        await engine.pause(PauseMode.ABORT)
        await load_while_paused(engine, b, WeightStamp(epoch=1))
        await engine.resume()
        assert await generate_all(engine, prompts(7), max_new_tokens=12) == wanted[1]
