"""An engine on a tiny checkpoint, and a hand on its forward passes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hotswap_transformers.engine import TransformersEngine

from hotswap.engine.generation import EmbeddedGeneration
from hotswap.seams import GenerateRequest, SamplingParams, TokenChunk
from hotswap.testing.checkpoints import make_checkpoint
from hotswap.types import PauseMode, Scope, WeightStamp
from hotswap.weights.checkpoint import Checkpoint

LIMIT_S = 60.0


class Passes:
    """Lets ``count`` forward passes of an engine through and holds the next one."""

    def __init__(self, engine: TransformersEngine, *, count: int) -> None:
        self._left = count
        self._held, self._released = threading.Event(), threading.Event()
        self._hook = engine.model.register_forward_pre_hook(self._pass)

    def _pass(self, _module: object, _inputs: object) -> None:
        self._left -= 1
        if self._left < 0:
            self._held.set()
            if not self._released.wait(LIMIT_S):
                raise TimeoutError("nobody let the pass go on")

    async def held(self) -> None:
        """Wait until a pass is held."""
        assert await anyio.to_thread.run_sync(self._held.wait, LIMIT_S)

    def let_go(self) -> None:
        """Let everything through from now on."""
        self._hook.remove()
        self._released.set()


class Drive:
    """What tests do with an engine."""

    passes = Passes

    def __init__(self, root: Path) -> None:
        self._root = root

    def checkpoint(self, seed: int, **options: Any) -> Path:
        """A checkpoint of its own for every seed and every choice of options."""
        name = "-".join([str(seed), *(f"{key}={value}" for key, value in options.items())])
        path = self._root / name
        return path if path.is_dir() else make_checkpoint(path, seed=seed, **options)

    @asynccontextmanager
    async def running(self, seed: int = 1, **options: Any) -> AsyncIterator[TransformersEngine]:
        """An engine on the checkpoint of ``seed``."""
        directory = self.checkpoint(seed)
        async with TransformersEngine.from_directory(
            directory, device="cpu", **({"max_total_tokens": 2048} | options)
        ) as engine:
            yield engine

    def submit(
        self, engine: TransformersEngine, ids: Sequence[int], *, rid: str = "r", **sampling: Any
    ) -> EmbeddedGeneration:
        """Submit with ``ignore_eos`` unless said otherwise."""
        params = SamplingParams(**{"ignore_eos": True, **sampling})
        return engine.submit(GenerateRequest(rid=rid, input_ids=ids, sampling=params))

    async def chunks(self, generation: EmbeddedGeneration) -> list[TokenChunk]:
        """All chunks, within a bound."""
        with anyio.fail_after(LIMIT_S):
            return [chunk async for chunk in generation]

    def tokens(self, chunks: Sequence[TokenChunk]) -> list[int]:
        """The token ids in them."""
        return [chunk.token_id for chunk in chunks if chunk.token_id is not None]

    async def submit_together(
        self, engine: TransformersEngine, many: Sequence[Sequence[int]], **sampling: Any
    ) -> list[EmbeddedGeneration]:
        """Submit all before the next forward pass: none is a pass ahead of another."""
        await engine.pause(PauseMode.IN_PLACE)
        open_ones = [
            self.submit(engine, ids, rid=str(number), **sampling) for number, ids in enumerate(many)
        ]
        await engine.resume()
        return open_ones

    async def generate(
        self, engine: TransformersEngine, many: Sequence[Sequence[int]], **sampling: Any
    ) -> list[list[int]]:
        """Tokens of requests that run together, from the first pass."""
        open_ones = await self.submit_together(engine, many, **sampling)
        return [self.tokens(await self.chunks(generation)) for generation in open_ones]

    async def update(self, engine: TransformersEngine, directory: Path, *, epoch: int) -> None:
        """Write every tensor of a checkpoint and commit, within a pause."""
        await engine.pause(PauseMode.RETRACT)
        await self.write(engine, directory, epoch=epoch)
        await engine.resume()

    async def write(self, engine: TransformersEngine, directory: Path, *, epoch: int) -> None:
        """The same for an engine that is paused already."""
        with Checkpoint.open(directory) as checkpoint:
            plan = engine.plan(checkpoint.manifest, Scope.FULL)
            for bucket in checkpoint.buckets():
                await engine.write(plan, bucket)
        await engine.commit(WeightStamp(version=str(epoch), epoch=epoch, update_count=epoch))


@pytest.fixture(scope="session")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Drive:
    """Checkpoints are made once."""
    return Drive(tmp_path_factory.mktemp("checkpoints"))
