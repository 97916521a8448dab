"""Captured decode steps, with a capture that does the work again: all but CUDA itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.engine.graphs import DecodeGraphs, graph_sizes, use_cuda_graphs
from hotswap.engine.loading import load_model
from hotswap.types import PauseMode, WeightStamp
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import (
    Turnstile,
    chunks_of,
    generate_all,
    load_while_paused,
    prompts,
    submit,
    together,
    tokens_of,
)


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


async def tokens_through_a_swap(
    a: Path, b: Path, mode: PauseMode, replays: Replays | None
) -> list[list[int]]:
    """Of five texts that have a few tokens when the weights become those of ``b``."""
    async with EmbeddedEngine.from_directory(a, device="cpu", max_running_requests=5) as engine:
        decoder = engine.model.model
        if replays is not None:
            with torch.inference_mode():
                decoder.graphs = DecodeGraphs(
                    decoder, sizes=graph_sizes(5), capture=replays.capture
                )
        gate = Turnstile(engine, passes=4)
        async with together(engine):
            running = [
                submit(engine, ids, rid=str(n), max_new_tokens=20)
                for n, ids in enumerate(prompts(5))
            ]
        await gate.reached()
        pausing = asyncio.ensure_future(engine.pause(mode))
        await anyio.lowlevel.checkpoint()
        gate.open()
        await pausing
        await load_while_paused(engine, b, WeightStamp(epoch=1))
        await engine.resume()
        ended = [await chunks_of(generation) for generation in running]
    assert {chunk.stamp.epoch for chunks in ended for chunk in chunks} == {0, 1}
    return [tokens_of(chunks) for chunks in ended]


@pytest.mark.parametrize("mode", [PauseMode.IN_PLACE, PauseMode.RETRACT])
async def test_texts_that_live_through_a_swap_are_those_of_eager_passes(
    mode: PauseMode, checkpoint: Make
) -> None:
    a, b = checkpoint(arch="qwen3", seed=1), checkpoint(arch="qwen3", seed=2)
    replays = Replays()
    eager = await tokens_through_a_swap(a, b, mode, None)

    assert await tokens_through_a_swap(a, b, mode, replays) == eager
    assert replays.count > 0
