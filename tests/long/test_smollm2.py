"""The oracle on a real model: SmolLM2-135M-Instruct, as the demo unpacks it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from contrib.demo.smollm2 import unpack
from hotswap.testing.server import ServerProcess
from tests.process.checkpoint_edits import Tensors, edited
from tests.process.evidence import (
    NEW_TOKENS,
    PROMPTS,
    Evidence,
    assert_equal,
    assert_everything_differs,
)
from tests.process.http_client import client_of
from tests.process.in_process import load, logits_of, serving
from tests.process.reference import Reference

pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model, and one with every weight moved a little, as training does."""
    root = tmp_path_factory.mktemp("smollm2")
    a = unpack(root / "a")
    draw = torch.Generator().manual_seed(7)

    def move(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            noise = torch.randn(tensor.shape, generator=draw)
            moved = tensor.float() + 0.1 * tensor.float().std() * noise
            tensors[name] = moved.to(tensor.dtype)

    return {"a": a, "b": edited(a, root / "b", move, shards=2)}


async def test_swapped_equals_fresh_and_transformers(pair: dict[str, Path]) -> None:
    fresh: dict[str, Evidence] = {}
    arguments, environ = ("--dtype", "float32"), {"OMP_NUM_THREADS": "2"}
    with ServerProcess(pair["b"], *arguments, environ=environ) as server:
        async with client_of(server.base_url) as client:
            fresh["b"] = await Evidence.of(client)
    with ServerProcess(pair["a"], *arguments, environ=environ) as server:
        async with client_of(server.base_url) as client:
            fresh["a"] = await Evidence.of(client)
            assert_everything_differs(fresh["a"], fresh["b"])
            await client.update(pair["b"])
            assert_equal(await Evidence.of(client), fresh["b"])
            await client.pause("retract")
            await client.done("/flush_cache")
            await client.update(pair["a"])
            await client.resume()
            assert_equal(await Evidence.of(client), fresh["a"])
            await client.pause("in_place")
            await client.update(pair["b"])
            await client.resume()
            assert_equal(await Evidence.of(client), fresh["b"])

    reference = await asyncio.to_thread(Reference, pair["b"])
    assert fresh["b"].tokens == [reference.greedy(prompt, NEW_TOKENS) for prompt in PROMPTS]


async def test_logits_equal_those_of_transformers(pair: dict[str, Path]) -> None:
    loaded = load(pair["a"], dtype="float32")
    async with serving(loaded) as server:
        for name in ("b", "a", "b"):
            await server.client.update(pair[name])
        await server.client.pause("retract")
        reference = Reference(pair["b"])
        for prompt in PROMPTS:
            seen, wanted = logits_of(loaded.model, prompt), reference.logits(prompt)
            assert (seen - wanted).abs().max().item() <= 1e-4
