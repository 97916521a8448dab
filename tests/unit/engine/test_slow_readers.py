"""A client that does not read: it stops nobody, holds no keys and values, and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from hotswap.engine import EmbeddedEngine
from hotswap.types import InFlightCounts, PauseMode
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import chunks_of, generate, submit, tokens_of

PROMPT = [5, 6, 7, 8]
UNREAD = 8
SAMPLING: dict[str, Any] = {"max_new_tokens": 50, "temperature": 0.8, "seed": 4}


@pytest.fixture
async def engine(checkpoint: Make) -> AsyncIterator[EmbeddedEngine]:
    """One request at a time, and eight chunks of it that nobody has read."""
    async with EmbeddedEngine.from_directory(
        checkpoint(arch="qwen3"), max_running_requests=1, max_unread_chunks=UNREAD
    ) as running:
        yield running


async def until_stalled(engine: EmbeddedEngine, count: int = 1) -> None:
    """Wait until ``count`` requests stand still: nobody is told of it."""
    with anyio.fail_after(30):
        while engine.load.stalled < count:
            await anyio.lowlevel.checkpoint()


async def test_what_waits_to_be_read_is_bounded_and_nobody_else_waits(
    engine: EmbeddedEngine,
) -> None:
    alone = await generate(engine, PROMPT, **SAMPLING)
    await engine.flush()
    slow = submit(engine, PROMPT, rid="slow", **SAMPLING)
    await until_stalled(engine)
    assert engine.in_flight == InFlightCounts(waiting=1)
    # The only slot is free for others.
    for _ in range(3):
        assert await generate(engine, [1, 2], rid="other", max_new_tokens=5)
    assert engine.load.generated_tokens == 50 + UNREAD + 15
    chunks = await chunks_of(slow)
    assert tokens_of(chunks) == alone
    assert chunks[-1].num_retractions > 0
    assert engine.load.stalled == 0
    assert engine.in_flight == InFlightCounts()


async def test_it_goes_on_once_half_has_been_read(engine: EmbeddedEngine) -> None:
    slow = submit(engine, PROMPT, rid="slow", **SAMPLING)
    await until_stalled(engine)
    hits = engine.load.cache_hits
    for _ in range(UNREAD // 2 - 1):
        await anext(slow)
    # Whatever was posted has been done once a command is answered.
    await engine.resume()
    assert engine.load.generated_tokens == UNREAD
    await anext(slow)
    with anyio.fail_after(30):
        while engine.load.generated_tokens < UNREAD + UNREAD // 2:
            await anyio.lowlevel.checkpoint()
    await until_stalled(engine)
    # What it had computed was kept, so that going on costs next to nothing.
    assert engine.load.cache_hits == hits + 1
    slow.abort()
    assert (await chunks_of(slow))[-1].finish_reason == "abort"


async def test_an_abort_ends_one_that_stands_still(engine: EmbeddedEngine) -> None:
    slow = submit(engine, PROMPT, **SAMPLING)
    await until_stalled(engine)
    slow.abort()
    chunks = await chunks_of(slow)
    assert [chunk.finish_reason for chunk in chunks] == [None] * UNREAD + ["abort"]
    assert engine.in_flight == InFlightCounts()
    assert engine.load.stalled == 0


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_every_pause_is_answered_at_once(mode: PauseMode, engine: EmbeddedEngine) -> None:
    alone = await generate(engine, PROMPT, **SAMPLING)
    slow = submit(engine, PROMPT, rid="slow", **SAMPLING)
    await until_stalled(engine)
    with anyio.fail_after(30):
        pause = await engine.pause(mode)
    assert pause.num_aborted == (1 if mode is PauseMode.ABORT else 0)
    assert engine.in_flight.holding_kv == 0
    assert await engine.flush() == 1
    read = [await anext(slow) for _ in range(UNREAD)]
    assert engine.load.generated_tokens == 50 + UNREAD
    await engine.resume()
    chunks = read + await chunks_of(slow)
    assert tokens_of(chunks) == (alone[:UNREAD] if mode is PauseMode.ABORT else alone)


async def test_the_end_of_the_engine_ends_one_that_stands_still(checkpoint: Make) -> None:
    async with EmbeddedEngine.from_directory(
        checkpoint(arch="qwen3"), max_unread_chunks=UNREAD
    ) as engine:
        slow = submit(engine, PROMPT, **SAMPLING)
        await until_stalled(engine)
    chunks = await chunks_of(slow)
    assert chunks[-1].finish_reason == "abort"
    assert len(tokens_of(chunks)) == UNREAD


async def test_many_slow_ones_all_get_their_tokens(engine: EmbeddedEngine) -> None:
    alone = [await generate(engine, [n, n], **SAMPLING) for n in range(6)]
    slow = [submit(engine, [n, n], rid=str(n), **SAMPLING) for n in range(6)]
    await until_stalled(engine, 6)

    async def read_slowly(at: int) -> list[int]:
        tokens = list[int]()
        async for chunk in slow[at]:
            tokens += tokens_of([chunk])
            await anyio.lowlevel.checkpoint()
        return tokens

    with anyio.fail_after(60):
        assert await asyncio.gather(*map(read_slowly, range(6))) == alone
