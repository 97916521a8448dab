"""Prompts that are computed in pieces, beside each other and beside running texts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from hotswap.engine import EmbeddedEngine
from hotswap.engine.batch import Batch
from hotswap.types import InFlightCounts, PauseMode, WeightStamp
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import (
    Turnstile,
    chunks_of,
    generate,
    generate_all,
    load_while_paused,
    random_ids,
    submit,
    together,
    tokens_of,
)

LONG = [7, *random_ids(149, seed=8)]


@contextmanager
def passes_of(engine: EmbeddedEngine) -> Iterator[list[list[int]]]:
    """How many tokens each text has in each forward pass."""
    passes: list[list[int]] = []

    def note(_module: object, inputs: tuple[Batch]) -> None:
        passes.append([part.stop - part.start for part in inputs[0].segments])

    hook = engine.model.register_forward_pre_hook(note)
    yield passes
    hook.remove()


def texts() -> list[list[int]]:
    """Prompts of very different lengths that share no first token."""
    return [[n, *random_ids(length, seed=n)] for n, length in enumerate((150, 3, 70, 0, 33))]


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
@pytest.mark.parametrize(
    "options",
    [
        {"arch": "qwen3"},
        {"arch": "llama"},
        {
            "arch": "qwen2",
            "rope": {"rope_type": "dynamic", "factor": 4.0},
            "max_position_embeddings": 64,
        },
    ],
    ids=["qwen3", "llama", "qwen2-dynamic"],
)
async def test_pieces_change_no_token(
    size: int, options: dict[str, object], checkpoint: Make
) -> None:
    directory = checkpoint(**options)
    sampling = {"max_new_tokens": 12, "temperature": 0.7, "seed": 3}
    async with EmbeddedEngine.from_directory(directory, chunked_prefill_size=10_000) as plain:
        alone = [await generate(plain, text, **sampling) for text in texts()]
    async with EmbeddedEngine.from_directory(directory, chunked_prefill_size=size) as engine:
        assert await generate_all(engine, texts(), **sampling) == alone
        # And once more, with everything in the prefix cache.
        assert await generate_all(engine, texts(), **sampling) == alone


async def test_a_pass_computes_no_more_of_prompts_than_it_may(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    async with EmbeddedEngine.from_directory(directory, chunked_prefill_size=16) as engine:
        gate = Turnstile(engine, passes=2)
        running = submit(engine, [9, 9, 9], rid="running", max_new_tokens=40)
        await gate.reached()
        with passes_of(engine) as passes:
            later = [
                submit(engine, [n, *random_ids(60, seed=n)], rid=str(n), max_new_tokens=1)
                for n in range(3)
            ]
            gate.open()
            for generation in later:
                assert len(tokens_of(await chunks_of(generation))) == 1
            assert len(tokens_of(await chunks_of(running))) == 40
        # The running text is the first in every pass, with one token; prompts come after it.
        prompts = [counts[1:] for counts in passes]
        assert {counts[0] for counts in passes} == {1}
        assert max(map(sum, prompts)) == 16
        assert sum(map(sum, prompts)) == 3 * 61
        assert engine.load.prefill_tokens == 3 * 61 + 3


async def test_a_short_request_beside_long_ones_does_not_wait_for_them(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    async with EmbeddedEngine.from_directory(directory, chunked_prefill_size=32) as engine:
        gate = Turnstile(engine, passes=1)
        async with together(engine):
            longs = [
                submit(engine, [n, *random_ids(200, seed=n)], rid=str(n), max_new_tokens=1)
                for n in range(8)
            ]
        await gate.reached()
        short = submit(engine, [99, *random_ids(10, seed=99)], rid="short", max_new_tokens=1)
        ended: list[str] = []

        async def note(rid: str) -> None:
            await chunks_of(short if rid == "short" else longs[int(rid)])
            ended.append(rid)

        async with anyio.create_task_group() as tasks:
            for rid in [*"01234567", "short"]:
                tasks.start_soon(note, rid)
            gate.open()
        assert ended == ["short", *"01234567"]


@pytest.mark.parametrize("after", [1, 3, 6])
async def test_retracted_in_the_middle_of_its_prompt(after: int, checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    async with EmbeddedEngine.from_directory(directory, chunked_prefill_size=20) as engine:
        whole = await generate(engine, LONG, max_new_tokens=8)
        await engine.flush()
        gate = Turnstile(engine, passes=after)
        generation = submit(engine, LONG, max_new_tokens=8)
        await gate.reached()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.RETRACT))
        await anyio.lowlevel.checkpoint()
        gate.open()
        await pausing
        assert engine.in_flight == InFlightCounts(waiting=1)
        await engine.resume()
        chunks = await chunks_of(generation)
        assert tokens_of(chunks) == whole
        assert {chunk.num_retractions for chunk in chunks} == {1}


async def test_frozen_in_the_middle_of_its_prompt_through_an_update(checkpoint: Make) -> None:
    a, b = checkpoint(arch="qwen3"), checkpoint(arch="qwen3", seed=1)
    async with EmbeddedEngine.from_directory(b) as fresh:
        wanted = await generate(fresh, LONG, max_new_tokens=8)
    async with EmbeddedEngine.from_directory(a, chunked_prefill_size=20) as engine:
        gate = Turnstile(engine, passes=3)
        mixed = submit(engine, LONG, rid="mixed", max_new_tokens=40)
        await gate.reached()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.IN_PLACE))
        await anyio.lowlevel.checkpoint()
        gate.open()
        await pausing
        await load_while_paused(engine, b, WeightStamp(epoch=1))
        await engine.flush()
        await engine.resume()
        # While it runs: its keys and values are of both weights, and for nobody else.
        again = await chunks_of(submit(engine, LONG, rid="again", max_new_tokens=8))
        assert {chunk.cached_tokens for chunk in again} == {0}
        assert tokens_of(again) == wanted
        chunks = await chunks_of(mixed)
        assert {chunk.stamp.epoch for chunk in chunks} == {1}
        last = await chunks_of(submit(engine, LONG + wanted, rid="last", max_new_tokens=1))
        # All of it from the one that ran under the new weights alone.
        assert last[0].cached_tokens == len(LONG + wanted) - 1


async def test_aborted_in_the_middle_of_its_prompt(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    async with EmbeddedEngine.from_directory(directory, chunked_prefill_size=20) as engine:
        whole = await generate(engine, LONG, max_new_tokens=8)
        await engine.flush()
        gate = Turnstile(engine, passes=2)
        generation = submit(engine, LONG, max_new_tokens=8)
        await gate.reached()
        generation.abort()
        gate.open()
        chunks = await chunks_of(generation)
        assert [(chunk.token_id, chunk.finish_reason) for chunk in chunks] == [(None, "abort")]
        # Three passes had run: what they computed is there for whoever asks again.
        again = await chunks_of(submit(engine, LONG, max_new_tokens=8))
        assert again[0].cached_tokens == 60
        assert tokens_of(again) == whole


@pytest.mark.parametrize("mode", [PauseMode.ABORT, PauseMode.WAIT])
async def test_pauses_meet_requests_in_every_stage(mode: PauseMode, checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    async with EmbeddedEngine.from_directory(
        directory, chunked_prefill_size=20, max_running_requests=2
    ) as engine:
        gate = Turnstile(engine, passes=3)
        async with together(engine):
            running = submit(engine, [1, 2, 3], rid="running", max_new_tokens=5)
            prefilling = submit(engine, LONG, rid="prefilling", max_new_tokens=5)
            queued = submit(engine, LONG, rid="queued", max_new_tokens=5)
        await gate.reached()
        assert engine.in_flight == InFlightCounts(running=2, waiting=1, holding_kv=2)
        pausing = asyncio.ensure_future(engine.pause(mode))
        await anyio.lowlevel.checkpoint()
        gate.open()
        aborted = (await pausing).num_aborted
        if mode is PauseMode.ABORT:
            assert aborted == 3
            ends = [await chunks_of(one) for one in (running, prefilling, queued)]
            assert [len(tokens_of(chunks)) for chunks in ends] == [4, 0, 0]
            assert [chunks[-1].finish_reason for chunks in ends] == ["abort"] * 3
            assert engine.in_flight == InFlightCounts()
        else:
            assert engine.in_flight == InFlightCounts(waiting=1)
            assert len(tokens_of(await chunks_of(running))) == 5
            assert len(tokens_of(await chunks_of(prefilling))) == 5
        await engine.resume()
        assert len(tokens_of(await chunks_of(queued))) == (0 if mode is PauseMode.ABORT else 5)
