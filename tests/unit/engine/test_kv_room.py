"""When the memory for keys and values runs out: who waits, who gives way, who is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.engine.kv import KvCache, KvShape
from hotswap.engine.kv_memory import free_bytes, tokens_that_fit
from hotswap.engine.kv_room import KvRoom
from hotswap.types import InFlightCounts, PauseMode
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import (
    Turnstile,
    chunks_of,
    generate,
    generate_all,
    random_ids,
    submit,
    together,
    tokens_of,
)

BLOCK = KvCache.BLOCK


def texts(count: int, length: int) -> list[list[int]]:
    """Prompts of one length that share no first token."""
    return [[n, *random_ids(length - 1, seed=n)] for n in range(count)]


@pytest.fixture
def directory(checkpoint: Make) -> Path:
    return checkpoint(arch="qwen3")


async def test_a_prompt_that_can_never_fit_is_refused(directory: Path) -> None:
    async with EmbeddedEngine.from_directory(directory, max_total_tokens=2 * BLOCK + 5) as engine:
        assert engine.load.kv_tokens_total == 2 * BLOCK
        assert engine.describe()["max_total_tokens"] == 2 * BLOCK
        with pytest.raises(ValueError, match=f"256 tokens, wanted 1 to {2 * BLOCK - 1}.*memory"):
            submit(engine, random_ids(2 * BLOCK), max_new_tokens=1)
        assert engine.in_flight == InFlightCounts()
        chunks = await chunks_of(submit(engine, random_ids(2 * BLOCK - 3), max_new_tokens=50))
        # As in a context of that size.
        assert (len(tokens_of(chunks)), chunks[-1].finish_reason) == (3, "length")


async def test_what_does_not_fit_waits_and_runs_later(directory: Path) -> None:
    many = texts(5, BLOCK)
    async with EmbeddedEngine.from_directory(directory) as plain:
        alone = [await generate(plain, text, max_new_tokens=6) for text in many]
    async with EmbeddedEngine.from_directory(directory, max_total_tokens=4 * BLOCK) as engine:
        gate = Turnstile(engine, passes=1)
        async with together(engine):
            ones = [
                submit(engine, text, rid=str(n), max_new_tokens=6) for n, text in enumerate(many)
            ]
        await gate.reached()
        # Each needs two blocks: one for its prompt, one for what comes after.
        assert engine.in_flight == InFlightCounts(running=2, waiting=3, holding_kv=2)
        gate.open()
        assert [tokens_of(await chunks_of(one)) for one in ones] == alone
        assert engine.load.retractions == 0


async def test_the_youngest_gives_way_and_is_computed_again(directory: Path) -> None:
    many = texts(3, BLOCK - 10)
    sampling = {"max_new_tokens": 30, "temperature": 0.7, "seed": 5}
    async with EmbeddedEngine.from_directory(directory) as plain:
        alone = [await generate(plain, text, **sampling) for text in many]
    async with EmbeddedEngine.from_directory(directory, max_total_tokens=4 * BLOCK) as engine:
        async with together(engine):
            ones = [submit(engine, text, rid=str(n), **sampling) for n, text in enumerate(many)]
        ends = [await chunks_of(one) for one in ones]
        assert [tokens_of(chunks) for chunks in ends] == alone
        # Three of them outgrow four blocks: the last to come waits for one to end, once.
        assert [chunks[-1].num_retractions for chunks in ends] == [0, 0, 1]
        assert engine.load.retractions == 1


async def test_many_that_outgrow_the_memory_all_end_as_they_would_alone(directory: Path) -> None:
    many = [[n, *random_ids(20 * n, seed=n)] for n in range(12)]
    sampling = {"max_new_tokens": 150}
    async with EmbeddedEngine.from_directory(directory) as plain:
        alone = [await generate(plain, text, **sampling) for text in many]
    async with EmbeddedEngine.from_directory(
        directory, max_total_tokens=5 * BLOCK, chunked_prefill_size=50
    ) as engine:
        assert await generate_all(engine, many, **sampling) == alone
        load = engine.load
        assert load.retractions > 0
        assert (load.running, load.waiting, load.kv_tokens_used) == (0, 0, load.cached_tokens)
        assert load.kv_tokens_used <= load.kv_tokens_total == 5 * BLOCK


async def test_cached_prefixes_give_way_first(directory: Path) -> None:
    async with EmbeddedEngine.from_directory(directory, max_total_tokens=3 * BLOCK) as engine:
        for text in texts(2, BLOCK - 10):
            await generate(engine, text, max_new_tokens=1)
        assert engine.load.cached_tokens == 2 * (BLOCK - 10)
        chunks = await chunks_of(
            submit(engine, [77, *random_ids(2 * BLOCK - 10, seed=7)], max_new_tokens=1)
        )
        assert chunks[0].num_retractions == 0
        # The longer text and one of the others are more than there is.
        assert engine.load.cached_tokens <= 3 * BLOCK
        gate = Turnstile(engine, passes=0)
        last = submit(engine, [78, *random_ids(2 * BLOCK, seed=8)], max_new_tokens=1)
        await gate.reached()
        load = engine.load
        gate.open()
        await chunks_of(last)
        assert load.kv_tokens_used <= 3 * BLOCK
        assert (load.running, load.retractions) == (1, 0)


async def test_a_drain_waits_for_those_that_had_to_give_way(directory: Path) -> None:
    many = texts(3, BLOCK - 10)
    async with EmbeddedEngine.from_directory(
        directory, max_total_tokens=4 * BLOCK, max_running_requests=3
    ) as engine:
        gate = Turnstile(engine, passes=2)
        async with together(engine):
            running = [
                submit(engine, text, rid=str(n), max_new_tokens=30) for n, text in enumerate(many)
            ]
            queued = submit(engine, [50], rid="queued", max_new_tokens=3)
        await gate.reached()
        assert engine.in_flight == InFlightCounts(running=3, waiting=1, holding_kv=3)
        pausing = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
        await anyio.lowlevel.checkpoint()
        gate.open()
        await pausing
        assert engine.load.retractions == 1
        assert engine.in_flight == InFlightCounts(waiting=1)
        assert [len(tokens_of(await chunks_of(one))) for one in running] == [30] * 3
        await engine.resume()
        assert len(tokens_of(await chunks_of(queued))) == 3


@pytest.mark.parametrize("mode", [PauseMode.ABORT, PauseMode.RETRACT, PauseMode.IN_PLACE])
async def test_pauses_while_one_has_given_way(mode: PauseMode, directory: Path) -> None:
    many = texts(3, BLOCK - 10)
    async with EmbeddedEngine.from_directory(directory) as plain:
        alone = [await generate(plain, text, max_new_tokens=30) for text in many]
    async with EmbeddedEngine.from_directory(directory, max_total_tokens=4 * BLOCK) as engine:
        gate = Turnstile(engine, passes=16)
        async with together(engine):
            ones = [
                submit(engine, text, rid=str(n), max_new_tokens=30) for n, text in enumerate(many)
            ]
        await gate.reached()
        assert engine.in_flight == InFlightCounts(running=2, waiting=1, holding_kv=2)
        pausing = asyncio.ensure_future(engine.pause(mode))
        await anyio.lowlevel.checkpoint()
        gate.open()
        aborted = (await pausing).num_aborted
        assert aborted == (3 if mode is PauseMode.ABORT else 0)
        await engine.resume()
        ends = [await chunks_of(one) for one in ones]
        if mode is PauseMode.ABORT:
            assert [chunks[-1].finish_reason for chunks in ends] == ["abort"] * 3
        else:
            assert [tokens_of(chunks) for chunks in ends] == alone


@pytest.mark.parametrize(
    "name",
    ["max_running_requests", "chunked_prefill_size", "max_unread_chunks", "max_total_tokens"],
)
def test_bounds_under_which_nothing_could_run_are_refused(name: str, directory: Path) -> None:
    bounds: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=name):
        EmbeddedEngine.from_directory(directory, **bounds)


def test_less_than_a_block_is_no_room() -> None:
    with pytest.raises(ValueError, match=f"room for .* 100 tokens, wanted at least {BLOCK}"):
        KvRoom(100)
    assert repr(KvRoom(BLOCK)) == f"<KvRoom 0 of {BLOCK} tokens>"


def test_the_smaller_of_the_two_bounds_counts() -> None:
    shape = KvShape(
        num_layers=2, num_kv_heads=3, head_dim=4, dtype=torch.bfloat16, device=torch.device("cpu")
    )
    assert shape.token_bytes == 2 * 2 * 3 * 4 * 2
    assert shape.allocate(5).numel() * 2 == 5 * shape.token_bytes
    free = free_bytes(shape.device)
    fit = tokens_that_fit(shape, max_total_tokens=None, mem_fraction_static=0.5)
    # Others on this machine take and free memory meanwhile.
    assert fit == pytest.approx(free * 0.5 / shape.token_bytes, rel=0.3)
    assert tokens_that_fit(shape, max_total_tokens=999, mem_fraction_static=0.5) == 999
