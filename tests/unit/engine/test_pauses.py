"""Each pause mode, held at an exact forward pass; what is in flight, and what comes out."""

from __future__ import annotations

import asyncio
import time

import anyio
import pytest

from hotswap.engine import EmbeddedEngine
from hotswap.errors import Overtaken
from hotswap.types import InFlightCounts, PauseMode
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import (
    Turnstile,
    chunks_of,
    generate,
    generate_all,
    prompts,
    submit,
    together,
    tokens_of,
)

PROMPT = [5, 6, 7, 8]


async def posted(coroutine_task: asyncio.Task[object]) -> None:
    """Let a fresh task run until it waits: what it posts to the engine is posted then."""
    await anyio.lowlevel.checkpoint()
    assert not coroutine_task.done()


async def test_abort_ends_everything_with_what_it_has(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    async with EmbeddedEngine.from_directory(directory, max_running_requests=2) as engine:
        whole = await generate_all(engine, prompts(4), max_new_tokens=30)
        await engine.flush()
        gate = Turnstile(engine, passes=5)
        async with together(engine):
            open_ones = [
                submit(engine, ids, rid=str(n), max_new_tokens=30)
                for n, ids in enumerate(prompts(4))
            ]
        await gate.reached()
        assert engine.in_flight == InFlightCounts(running=2, waiting=2, holding_kv=2)
        pausing = asyncio.ensure_future(engine.pause(PauseMode.ABORT))
        await posted(pausing)
        gate.open()
        pause = await pausing
        assert pause.num_aborted == 4
        assert engine.in_flight == InFlightCounts()
        ended = [await chunks_of(generation) for generation in open_ones]
    for chunks in ended:
        assert chunks[-1].finish_reason == "abort"
        assert chunks[-1].token_id is None
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert [len(tokens_of(chunks)) for chunks in ended] == [6, 6, 0, 0]
    assert [tokens_of(chunks) for chunks in ended[:2]] == [tokens[:6] for tokens in whole[:2]]


async def test_retract_drops_kv_and_recomputes_to_the_same_tokens(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    async with EmbeddedEngine.from_directory(directory, max_running_requests=3) as engine:
        sampling = {"max_new_tokens": 24, "temperature": 0.8, "seed": 11}
        whole = await generate_all(engine, prompts(5), **sampling)
        await engine.flush()
        gate = Turnstile(engine, passes=7)
        async with together(engine):
            open_ones = [
                submit(engine, ids, rid=str(n), **sampling) for n, ids in enumerate(prompts(5))
            ]
        await gate.reached()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.RETRACT))
        await posted(pausing)
        gate.open()
        assert (await pausing).num_aborted == 0
        assert engine.in_flight == InFlightCounts(running=0, waiting=5, holding_kv=0)
        assert await engine.flush() == 0
        await engine.resume()
        ended = [await chunks_of(generation) for generation in open_ones]
    assert [tokens_of(chunks) for chunks in ended] == whole
    assert [chunks[-1].num_retractions for chunks in ended] == [1, 1, 1, 0, 0]
    assert [chunk.num_retractions for chunk in ended[0]] == [0] * 8 + [1] * 16
    assert [chunks[-1].finish_reason for chunks in ended] == ["length"] * 5


async def test_retracted_requests_start_again_before_those_that_came_later(
    checkpoint: Make,
) -> None:
    directory = checkpoint(arch="qwen3")
    async with EmbeddedEngine.from_directory(directory, max_running_requests=2) as engine:
        gate = Turnstile(engine, passes=3)
        async with together(engine):
            first = [submit(engine, PROMPT, rid=f"a{n}", max_new_tokens=9) for n in range(2)]
            later = submit(engine, PROMPT, rid="b", max_new_tokens=9)
        await gate.reached()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.RETRACT))
        await posted(pausing)
        gate.open()
        await pausing
        again = Turnstile(engine, passes=0)
        await engine.resume()
        await again.reached()
        assert engine.in_flight == InFlightCounts(running=2, waiting=1, holding_kv=2)
        later.abort()
        again.open()
        assert tokens_of(await chunks_of(later)) == []
        assert [len(tokens_of(await chunks_of(generation))) for generation in first] == [9, 9]


async def test_in_place_freezes_with_kv(engine: EmbeddedEngine) -> None:
    whole = await generate(engine, PROMPT, max_new_tokens=20)
    await engine.flush()
    gate = Turnstile(engine, passes=4)
    generation = submit(engine, PROMPT, max_new_tokens=20)
    await gate.reached()
    pausing = asyncio.ensure_future(engine.pause(PauseMode.IN_PLACE))
    await posted(pausing)
    gate.open()
    await pausing
    assert engine.in_flight == InFlightCounts(running=1, waiting=0, holding_kv=1)
    chunks = [await anext(generation) for _ in range(5)]
    # Commands are answered, and no forward pass runs: nothing comes.
    assert await engine.flush() == 0
    with anyio.move_on_after(0):
        chunks.append(await anext(generation))
    assert len(chunks) == 5
    await engine.resume()
    chunks += await chunks_of(generation)
    assert tokens_of(chunks) == whole
    assert {chunk.num_retractions for chunk in chunks} == {0}


async def test_wait_lets_the_running_finish_and_starts_nothing_new(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    async with EmbeddedEngine.from_directory(directory, max_running_requests=2) as engine:
        gate = Turnstile(engine, passes=3)
        async with together(engine):
            running = [submit(engine, PROMPT, rid=f"a{n}", max_new_tokens=12) for n in range(2)]
            waiting = submit(engine, PROMPT, rid="b", max_new_tokens=12)
        await gate.reached()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
        await posted(pausing)
        gate.open()
        assert (await pausing).num_aborted == 0
        assert engine.in_flight == InFlightCounts(running=0, waiting=1, holding_kv=0)
        ended = [await chunks_of(generation) for generation in running]
        assert [chunks[-1].finish_reason for chunks in ended] == ["length"] * 2
        await engine.resume()
        assert len(tokens_of(await chunks_of(waiting))) == 12


async def test_requests_submitted_while_paused_wait(engine: EmbeddedEngine) -> None:
    whole = await generate(engine, PROMPT, max_new_tokens=6)
    await engine.pause(PauseMode.ABORT)
    generation = submit(engine, PROMPT, max_new_tokens=6)
    assert await engine.flush() == 1
    assert engine.in_flight == InFlightCounts(running=0, waiting=1, holding_kv=0)
    await engine.resume()
    assert tokens_of(await chunks_of(generation)) == whole


async def test_a_cancelled_wait_lets_the_engine_run_on(engine: EmbeddedEngine) -> None:
    gate = Turnstile(engine, passes=3)
    running = submit(engine, PROMPT, rid="a", max_new_tokens=8)
    await gate.reached()
    pausing = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
    await posted(pausing)
    later = submit(engine, PROMPT, rid="b", max_new_tokens=8)
    pausing.cancel()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await pausing
    assert len(tokens_of(await chunks_of(running))) == 8
    assert len(tokens_of(await chunks_of(later))) == 8


async def test_of_two_that_wait_one_may_leave(engine: EmbeddedEngine) -> None:
    gate = Turnstile(engine, passes=3)
    running = submit(engine, PROMPT, max_new_tokens=8)
    await gate.reached()
    leaves = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
    stays = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
    await posted(stays)
    leaves.cancel()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    await stays
    assert len(tokens_of(await chunks_of(running))) == 8
    later = submit(engine, PROMPT, rid="later")
    assert await engine.flush() == 1
    assert engine.in_flight.waiting == 1
    later.abort()
    assert tokens_of(await chunks_of(later)) == []


@pytest.mark.parametrize("mode", [PauseMode.ABORT, PauseMode.RETRACT, PauseMode.IN_PLACE])
async def test_a_stronger_pause_takes_over_one_that_drains(
    mode: PauseMode, engine: EmbeddedEngine
) -> None:
    gate = Turnstile(engine, passes=3)
    generation = submit(engine, PROMPT, max_new_tokens=20)
    await gate.reached()
    weak = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
    strong = asyncio.ensure_future(engine.pause(mode))
    await posted(strong)
    gate.open()
    aborted = (await strong).num_aborted
    assert (await weak).num_aborted == 0
    assert aborted == (1 if mode is PauseMode.ABORT else 0)
    holding = 1 if mode is PauseMode.IN_PLACE else 0
    assert engine.in_flight.holding_kv == holding
    await engine.resume()
    count = len(tokens_of(await chunks_of(generation)))
    assert count == (4 if mode is PauseMode.ABORT else 20)


async def test_a_resume_overtakes_a_drain(engine: EmbeddedEngine) -> None:
    gate = Turnstile(engine, passes=3)
    generation = submit(engine, PROMPT, max_new_tokens=20)
    await gate.reached()
    pausing = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
    resuming = asyncio.ensure_future(engine.resume())
    await posted(resuming)
    gate.open()
    await resuming
    with pytest.raises(Overtaken, match="overtaken by a resume"):
        await pausing
    assert len(tokens_of(await chunks_of(generation))) == 20


@pytest.mark.parametrize("mode", [PauseMode.ABORT, PauseMode.RETRACT])
async def test_a_stronger_pause_applies_to_frozen_requests(
    mode: PauseMode, engine: EmbeddedEngine
) -> None:
    gate = Turnstile(engine, passes=3)
    generation = submit(engine, PROMPT, max_new_tokens=20)
    await gate.reached()
    freezing = asyncio.ensure_future(engine.pause(PauseMode.IN_PLACE))
    await posted(freezing)
    gate.open()
    await freezing
    before = time.perf_counter()
    pause = await engine.pause(mode)
    assert engine.in_flight.holding_kv == 0
    # Nothing ran any more: this pause cost only itself.
    assert pause.since >= before
    assert pause.num_aborted == (1 if mode is PauseMode.ABORT else 0)
    await engine.resume()
    chunks = await chunks_of(generation)
    assert chunks[-1].finish_reason == ("abort" if mode is PauseMode.ABORT else "length")


async def test_since_is_the_end_of_the_last_forward_pass(engine: EmbeddedEngine) -> None:
    before = time.perf_counter()
    idle = await engine.pause(PauseMode.ABORT)
    assert before <= idle.since <= time.perf_counter()
    await engine.resume()
    gate = Turnstile(engine, passes=3)
    generation = submit(engine, PROMPT, max_new_tokens=20)
    await gate.reached()
    held = time.perf_counter()
    pausing = asyncio.ensure_future(engine.pause(PauseMode.ABORT))
    await posted(pausing)
    gate.open()
    busy = await pausing
    assert held < busy.since < time.perf_counter()
    await chunks_of(generation)


async def test_a_pause_that_was_cancelled_before_it_began_never_happens(
    engine: EmbeddedEngine,
) -> None:
    gate = Turnstile(engine, passes=2)
    generation = submit(engine, PROMPT, max_new_tokens=9)
    await gate.reached()
    pausing = asyncio.ensure_future(engine.pause(PauseMode.ABORT))
    await posted(pausing)
    pausing.cancel()
    await anyio.lowlevel.checkpoint()
    await anyio.lowlevel.checkpoint()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await pausing
    chunks = await chunks_of(generation)
    assert chunks[-1].finish_reason == "length"
    assert len(tokens_of(chunks)) == 9


async def test_abort_of_the_last_running_request_ends_a_drain(engine: EmbeddedEngine) -> None:
    gate = Turnstile(engine, passes=2)
    generation = submit(engine, PROMPT, max_new_tokens=500)
    await gate.reached()
    pausing = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
    await posted(pausing)
    generation.abort()
    gate.open()
    assert (await pausing).num_aborted == 0
    assert (await chunks_of(generation))[-1].finish_reason == "abort"
