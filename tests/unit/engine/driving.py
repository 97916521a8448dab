"""Ways to drive an engine in tests: prompts, requests, and a hand on its forward passes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.engine.batch import Work, make_batch
from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.kv import KvCache, KvShape
from hotswap.engine.model import CausalLm
from hotswap.seams import GenerateRequest, SamplingParams, TokenChunk
from hotswap.types import PauseMode, Scope, WeightStamp
from hotswap.weights.checkpoint import Checkpoint

_PATIENCE_S = 30.0


def random_ids(count: int, *, seed: int = 0, below: int = 256) -> list[int]:
    """``count`` token ids, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, below, (count,), generator=generator).tolist()
    return ids


def prompts(count: int) -> list[list[int]]:
    """``count`` prompts of different lengths that share no first token with each other."""
    return [[number, *random_ids(3 * number + 1, seed=number)] for number in range(count)]


def submit(
    engine: EmbeddedEngine, ids: Sequence[int], *, rid: str = "r", **sampling: Any
) -> EmbeddedGeneration:
    """Submit with ``ignore_eos`` unless said otherwise."""
    params = SamplingParams(**{"ignore_eos": True, **sampling})
    return engine.submit(GenerateRequest(rid=rid, input_ids=ids, sampling=params))


@asynccontextmanager
async def together(engine: EmbeddedEngine) -> AsyncIterator[None]:
    """What is submitted within is all there before the next forward pass."""
    await engine.pause(PauseMode.IN_PLACE)
    yield
    await engine.resume()


async def chunks_of(generation: EmbeddedGeneration) -> list[TokenChunk]:
    """All chunks, within a bound."""
    with anyio.fail_after(_PATIENCE_S):
        return [chunk async for chunk in generation]


def tokens_of(chunks: Sequence[TokenChunk]) -> list[int]:
    """The token ids in them."""
    return [chunk.token_id for chunk in chunks if chunk.token_id is not None]


async def generate(engine: EmbeddedEngine, ids: Sequence[int], **sampling: Any) -> list[int]:
    """Tokens of one request."""
    return tokens_of(await chunks_of(submit(engine, ids, **sampling)))


async def generate_all(
    engine: EmbeddedEngine, many: Sequence[Sequence[int]], **sampling: Any
) -> list[list[int]]:
    """Tokens of many requests that run together, from the first pass: in bf16 they depend on
    how many are computed at once."""
    async with together(engine):
        open_ones = [submit(engine, ids, rid=str(n), **sampling) for n, ids in enumerate(many)]
    return [tokens_of(await chunks_of(generation)) for generation in open_ones]


async def load_while_paused(engine: EmbeddedEngine, directory: Any, stamp: WeightStamp) -> None:
    """Write every tensor of a checkpoint and commit; the engine is paused already."""
    with Checkpoint.open(directory) as checkpoint:
        plan = engine.plan(checkpoint.manifest, Scope.FULL)
        for bucket in checkpoint.buckets():
            await engine.write(plan, bucket)
    await engine.commit(stamp)


class Turnstile:
    """Lets ``passes`` forward passes of an engine through and holds the next one.

    What is posted to the engine meanwhile happens right after the held pass.
    """

    def __init__(self, engine: EmbeddedEngine, *, passes: int) -> None:
        self._left = passes
        self._held = threading.Event()
        self._released = threading.Event()
        self._hook = engine.model.register_forward_pre_hook(self._pass)

    def _pass(self, _module: object, _inputs: object) -> None:
        self._left -= 1
        if self._left < 0:
            self._held.set()
            if not self._released.wait(_PATIENCE_S):
                raise TimeoutError("nobody opened the turnstile")

    async def reached(self) -> None:
        """Wait until a pass is held."""
        assert await anyio.to_thread.run_sync(self._held.wait, _PATIENCE_S)

    def open(self) -> None:
        """Let everything through from now on."""
        self._hook.remove()
        self._released.set()


def kv_shape(model: CausalLm) -> KvShape:
    """The shape of the model's KV."""
    return KvShape(
        num_layers=model.config.num_layers,
        num_kv_heads=model.config.num_kv_heads,
        head_dim=model.config.head_dim,
        dtype=model.lm_head.weight.dtype,
        device=model.lm_head.weight.device,
    )


@torch.inference_mode()
def logits_of(model: CausalLm, ids: Sequence[int], *, cuts: Sequence[int] = ()) -> torch.Tensor:
    """``[tokens x vocabulary]``; ``cuts`` are where one forward pass ends and the next begins."""
    kv = KvCache(kv_shape(model))
    bounds = [0, *cuts, len(ids)]
    prompt_length = bounds[1]
    parts = [
        model(
            make_batch(
                [Work(kv=kv, tokens=ids[start:stop], prompt_length=prompt_length)],
                model.lm_head.weight.device,
            ),
            every_row=True,
        )
        for start, stop in pairwise(bounds)
    ]
    return torch.cat(parts)
