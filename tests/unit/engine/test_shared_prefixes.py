"""Prompts that share 512 tokens and then diverge, whatever became of the first of them."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from hotswap.engine import EmbeddedEngine
from hotswap.seams import GenerateRequest, LogprobsWanted, SamplingParams
from hotswap.types import PauseMode, WeightStamp
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import (
    Turnstile,
    chunks_of,
    generate,
    load_while_paused,
    random_ids,
    submit,
    together,
    tokens_of,
)

SHARED = random_ids(512, seed=21)
TAILS = [[200 + n, *random_ids(9, seed=n)] for n in range(6)]


async def without_cache(directory: object, texts: list[list[int]], count: int) -> list[list[int]]:
    """What a server that shares nothing puts out."""
    tokens = []
    async with EmbeddedEngine.from_directory(
        str(directory), prefix_cache_bytes=0, chunked_prefill_size=10_000
    ) as engine:
        for text in texts:
            tokens.append(await generate(engine, text, max_new_tokens=count))
        assert engine.load.cache_hits == 0
    return tokens


async def test_when_the_first_has_ended(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    texts = [SHARED + tail for tail in TAILS]
    wanted = await without_cache(directory, texts, 6)
    async with EmbeddedEngine.from_directory(directory) as engine:
        seen = [
            await chunks_of(submit(engine, text, rid=str(n), max_new_tokens=6))
            for n, text in enumerate(texts)
        ]
        assert [tokens_of(chunks) for chunks in seen] == wanted
        assert [chunks[0].cached_tokens for chunks in seen] == [0] + [512] * 5
        load = engine.load
        assert (load.cache_hits, load.cache_misses, load.cache_hit_tokens) == (5, 1, 5 * 512)
        assert load.prefill_tokens == 512 + 6 * 10
        assert engine.cache_stats.hit_tokens == 5 * 512


async def test_while_the_first_still_runs(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    texts = [SHARED + tail for tail in TAILS[:2]]
    wanted = await without_cache(directory, texts, 20)
    async with EmbeddedEngine.from_directory(directory) as engine:
        # Two passes of prompt, two of output; the next is held.
        gate = Turnstile(engine, passes=4)
        first = submit(engine, texts[0], rid="first", max_new_tokens=20)
        await gate.reached()
        second = submit(engine, texts[1], rid="second", max_new_tokens=20)
        gate.open()
        chunks = await chunks_of(second)
        assert chunks[0].cached_tokens == 512
        assert [tokens_of(await chunks_of(first)), tokens_of(chunks)] == wanted


async def test_all_at_once(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    texts = [SHARED + tail for tail in TAILS]
    wanted = await without_cache(directory, texts, 6)
    async with EmbeddedEngine.from_directory(directory) as engine:
        async with together(engine):
            ones = [
                submit(engine, text, rid=str(n), max_new_tokens=6) for n, text in enumerate(texts)
            ]
        seen = [await chunks_of(generation) for generation in ones]
        assert [tokens_of(chunks) for chunks in seen] == wanted
        assert [chunks[0].cached_tokens for chunks in seen] == [0] + [512] * 5
        # The second pass takes from the first one what the first pass computed.
        assert engine.load.prefill_tokens == 512 + 6 * 10


@pytest.mark.parametrize("update", [True, False])
async def test_never_from_one_that_ran_before_a_flush_or_an_update(
    update: bool, checkpoint: Make
) -> None:
    a, b = checkpoint(arch="qwen3"), checkpoint(arch="qwen3", seed=1)
    texts = [SHARED + tail for tail in TAILS[:2]]
    wanted = await without_cache(b if update else a, texts[1:], 6)
    async with EmbeddedEngine.from_directory(a) as engine:
        gate = Turnstile(engine, passes=4)
        first = submit(engine, texts[0], rid="first", max_new_tokens=60)
        await gate.reached()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.IN_PLACE))
        await anyio.lowlevel.checkpoint()
        gate.open()
        await pausing
        if update:
            await load_while_paused(engine, b, WeightStamp(epoch=1))
        else:
            assert await engine.flush() == 0
        held = Turnstile(engine, passes=2)
        await engine.resume()
        await held.reached()
        # The first still holds what it computed before.
        assert engine.load.kv_tokens_used >= 512
        second = submit(engine, texts[1], rid="second", max_new_tokens=6)
        held.open()
        chunks = await chunks_of(second)
        assert {chunk.cached_tokens for chunk in chunks} == {0}
        assert [tokens_of(chunks)] == wanted
        assert len(tokens_of(await chunks_of(first))) == 60


async def test_one_that_is_scored_takes_no_more_than_it_may(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    async with EmbeddedEngine.from_directory(directory, chunked_prefill_size=64) as engine:
        text = SHARED + TAILS[0]

        def scored(rid: str) -> GenerateRequest:
            return GenerateRequest(
                rid=rid,
                input_ids=text,
                sampling=SamplingParams(max_new_tokens=1, ignore_eos=True),
                logprobs=LogprobsWanted(input_start=300),
            )

        first = await chunks_of(engine.submit(scored("first")))
        again = await chunks_of(engine.submit(scored("again")))
        assert (first[0].cached_tokens, again[0].cached_tokens) == (0, 299)
        for one, other in zip(first[0].input_logprobs, again[0].input_logprobs, strict=True):
            assert one.token_id == other.token_id
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [one.token_id for one in again[0].input_logprobs] == text[300:]
