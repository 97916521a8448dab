"""Memory that the engine gives back, and takes again."""

from __future__ import annotations

import pytest
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.engine.graphs import DecodeGraphs, graph_sizes
from hotswap.seams import Sleeper
from hotswap.types import PauseMode, WeightStamp
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import generate, load_while_paused, random_ids

BOTH = frozenset({"weights", "kv_cache"})


@pytest.mark.parametrize("options", [{}, {"tied": True}, {"arch": "qwen3"}], ids=str)
async def test_a_full_load_after_it_is_as_good_as_a_start(
    checkpoint: Make, options: dict[str, object]
) -> None:
    directory = checkpoint(**options)
    prompt = random_ids(40)
    async with EmbeddedEngine.from_directory(directory, device="cpu") as engine:
        assert isinstance(engine, Sleeper)
        tokens = await generate(engine, prompt, max_new_tokens=6)
        before = await engine.checksums()
        with pytest.raises(RuntimeError, match="pause the engine first"):
            await engine.sleep(BOTH)
        assert await engine.checksums() == before
        assert engine.load.cached_tokens > 0

        await engine.pause(PauseMode.ABORT)
        await engine.sleep(BOTH)
        assert engine.load.cached_tokens == 0
        for look in (engine.checksums(), engine.read_weight("model.norm.weight", 1)):
            with pytest.raises(RuntimeError, match="released"):
                await look
        assert await engine.wake(BOTH) is False
        assert await engine.checksums() != before

        await load_while_paused(engine, directory, WeightStamp(epoch=1))
        await engine.resume()
        assert await engine.checksums() == before
        assert await generate(engine, prompt, max_new_tokens=6) == tokens


async def test_keys_and_values_sleep_alone(checkpoint: Make) -> None:
    async with EmbeddedEngine.from_directory(checkpoint(), device="cpu") as engine:
        prompt = random_ids(40)
        tokens = await generate(engine, prompt, max_new_tokens=6)
        await engine.pause(PauseMode.ABORT)
        await engine.sleep(frozenset({"kv_cache"}))
        assert engine.load.cached_tokens == 0
        assert await engine.wake(frozenset({"kv_cache"})) is False
        await engine.resume()
        assert await generate(engine, prompt, max_new_tokens=6) == tokens


async def test_graphs_go_with_the_weights_and_come_when_nothing_sleeps(
    checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def capture(model: object, *, max_running: int) -> bool:
        decoder = engine.model.model
        with torch.inference_mode():
            sizes = graph_sizes(max_running)
            decoder.graphs = DecodeGraphs(decoder, sizes=sizes, capture=lambda work: work)
        return True

    # No CUDA here: a capture that does the work again.
    monkeypatch.setattr("hotswap.engine.engine.use_cuda_graphs", lambda *_args, **_kw: True)
    directory = checkpoint()
    async with EmbeddedEngine.from_directory(directory, device="cpu") as engine:
        monkeypatch.setattr("hotswap.engine.engine.use_cuda_graphs", capture)
        capture(engine.model, max_running=2)
        first = engine.model.model.graphs
        wanted = await generate(engine, [1, 2, 3], max_new_tokens=6)
        await engine.pause(PauseMode.ABORT)
        await engine.sleep(frozenset({"kv_cache"}))
        assert engine.model.model.graphs is first
        await engine.sleep(frozenset({"weights"}))
        assert engine.model.model.graphs is None
        await engine.wake(frozenset({"weights"}))
        assert engine.model.model.graphs is None
        await load_while_paused(engine, directory, WeightStamp(epoch=1))
        await engine.wake(frozenset({"kv_cache"}))
        assert engine.model.model.graphs not in (None, first)
        await engine.resume()
        assert await generate(engine, [1, 2, 3], max_new_tokens=6) == wanted
