"""Random traffic against an engine with tight bounds: every text ends as it would alone.

Memory for a few texts, prompts in pieces, clients that read late, every kind of pause,
flushes and aborts, in an order drawn from a seed.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import anyio
import pytest

from hotswap.engine import EmbeddedEngine
from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.kv import KvCache
from hotswap.seams import TokenChunk
from hotswap.types import InFlightCounts, PauseMode
from tests.tiers import mostly_long
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import chunks_of, generate, random_ids, submit, tokens_of

SHARED = random_ids(90, seed=31)


def draw_text(draw: random.Random) -> list[int]:
    """A text that may begin as others do."""
    own = random_ids(draw.randint(1, 60), seed=draw.randint(0, 20))
    return SHARED[: draw.choice([0, 40, 90])] + own


def draw_sampling(draw: random.Random) -> dict[str, Any]:
    # Greedy: a draw that lands next to the edge of a token depends on the last bit of a sum.
    return {"max_new_tokens": draw.randint(1, 40)}


class Traffic:
    """Requests in flight against one engine, and what has to come out of each."""

    def __init__(self, engine: EmbeddedEngine, draw: random.Random) -> None:
        self._engine = engine
        self._draw = draw
        self._asked: dict[str, tuple[list[int], dict[str, Any]]] = {}
        self._open: dict[str, EmbeddedGeneration] = {}
        self._read: dict[str, list[TokenChunk]] = {}
        # Those that may end before their last token.
        self._cut: set[str] = set()

    def send(self) -> None:
        """One more request; some are read at once, others only at the end."""
        rid = str(len(self._asked))
        text, sampling = draw_text(self._draw), draw_sampling(self._draw)
        self._asked[rid] = text, sampling
        self._open[rid] = submit(self._engine, text, rid=rid, **sampling)

    def abort(self) -> None:
        """End one of them, which may be over."""
        rid = self._draw.choice(list(self._asked))
        self._cut.add(rid)
        self._open[rid].abort()

    async def pause(self) -> None:
        """Pause in some way, flush or not, and go on."""
        mode = self._draw.choice(list(PauseMode))
        if mode is PauseMode.ABORT:
            self._cut.update(self._asked)
        with anyio.fail_after(30):
            await self._engine.pause(mode)
            if self._draw.random() < 0.5:
                await self._engine.flush()
            await self._engine.resume()

    async def read_all(self) -> None:
        """Read every one to its end."""
        read = await asyncio.gather(*map(chunks_of, self._open.values()))
        self._read = dict(zip(self._open, read, strict=True))

    async def check(self, plain: EmbeddedEngine) -> None:
        """Compare each with what ``plain`` gives for it alone."""
        for rid, (text, sampling) in self._asked.items():
            chunks = self._read[rid]
            ends = [chunk.finish_reason for chunk in chunks if chunk.finish_reason is not None]
            assert len(ends) == 1, (rid, ends)
            alone = await generate(plain, text, **sampling)
            seen = tokens_of(chunks)
            if ends == ["abort"]:
                assert rid in self._cut
                assert seen == alone[: len(seen)]
            else:
                assert (ends, seen) == (["length"], alone)


@pytest.mark.parametrize("seed", mostly_long(range(6), but=[0, 1]))
async def test_every_text_ends_as_it_would_alone(seed: int, checkpoint: Make) -> None:
    draw = random.Random(seed)
    directory: Path = checkpoint(arch="qwen3")
    bounds: dict[str, Any] = {
        "max_running_requests": draw.choice([2, 5]),
        "chunked_prefill_size": draw.choice([1, 13, 64]),
        "max_total_tokens": draw.choice([3, 5]) * KvCache.BLOCK,
        "max_unread_chunks": draw.choice([4, 16]),
    }
    async with (
        EmbeddedEngine.from_directory(directory, prefix_cache_bytes=0) as plain,
        EmbeddedEngine.from_directory(directory, **bounds) as engine,
    ):
        traffic = Traffic(engine, draw)
        traffic.send()
        for _ in range(60):
            step = draw.choices(["send", "abort", "pause", "turn"], weights=[6, 2, 2, 6])[0]
            if step == "send":
                traffic.send()
            elif step == "abort":
                traffic.abort()
            elif step == "pause":
                await traffic.pause()
            else:
                # A command is answered between two passes: some have run by then.
                await engine.checksums()
        await traffic.read_all()
        assert engine.in_flight == InFlightCounts()
        load = engine.load
        assert (load.stalled, load.kv_tokens_used) == (0, load.cached_tokens)
        await traffic.check(plain)
