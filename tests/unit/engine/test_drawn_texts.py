"""Whole texts of the engine: seeds and penalties."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import anyio
import pytest

from hotswap.engine import EmbeddedEngine
from hotswap.types import PauseMode
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import (
    Turnstile,
    chunks_of,
    generate,
    prompts,
    random_ids,
    submit,
    tokens_of,
)
from tests.unit.engine.test_oracle import reference, reference_logits

PROMPT = random_ids(12, seed=9)
SEEDED: dict[str, Any] = {
    "max_new_tokens": 24,
    "temperature": 1.4,
    "top_p": 0.95,
    "frequency_penalty": 0.3,
    "seed": 1234,
}


async def test_a_seed_gives_the_same_text_whatever_else_runs(engine: EmbeddedEngine) -> None:
    alone = await generate(engine, PROMPT, **SEEDED)
    others = [
        submit(engine, ids, rid=f"o{number}", max_new_tokens=30, temperature=1.0)
        for number, ids in enumerate(prompts(5))
    ]
    beside = submit(engine, PROMPT, rid="r", **SEEDED)
    assert tokens_of(await chunks_of(beside)) == alone
    for generation in others:
        await chunks_of(generation)
    assert await generate(engine, PROMPT, **{**SEEDED, "seed": 1235}) != alone


@pytest.mark.parametrize("passes", [1, 3, 9])
async def test_a_seed_gives_the_same_text_after_a_retraction(checkpoint: Make, passes: int) -> None:
    async with EmbeddedEngine.from_directory(
        checkpoint(arch="qwen3"), device="cpu", chunked_prefill_size=5
    ) as engine:
        whole = await generate(engine, PROMPT, **SEEDED)
        await engine.flush()
        turnstile = Turnstile(engine, passes=passes)
        generation = submit(engine, PROMPT, **SEEDED)
        await turnstile.reached()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.RETRACT))
        await anyio.lowlevel.checkpoint()
        turnstile.open()
        await pausing
        await engine.resume()
        chunks = await chunks_of(generation)
    assert chunks[-1].num_retractions == 1
    assert tokens_of(chunks) == whole


@pytest.mark.parametrize(
    "penalties",
    [
        {"frequency_penalty": 0.7},
        {"presence_penalty": 1.1},
        {"repetition_penalty": 1.5},
        {"frequency_penalty": -0.4, "presence_penalty": 0.9, "repetition_penalty": 0.8},
    ],
)
async def test_penalties_work_on_the_logits_of_transformers(
    checkpoint: Make, engine: EmbeddedEngine, penalties: dict[str, float]
) -> None:
    model = reference(checkpoint(arch="qwen3"))
    frequency = penalties.get("frequency_penalty", 0.0)
    presence = penalties.get("presence_penalty", 0.0)
    factor = penalties.get("repetition_penalty", 1.0)
    wanted: list[int] = []
    for _ in range(16):
        logits = reference_logits(model, [*PROMPT, *wanted])[-1].tolist()
        for token, count in Counter(wanted).items():
            lower = logits[token] - frequency * count - presence
            logits[token] = lower * factor if lower < 0 else lower / factor
        wanted.append(logits.index(max(logits)))
    params: Any = penalties
    assert await generate(engine, PROMPT, max_new_tokens=16, **params) == wanted


async def test_no_end_of_text_before_there_are_enough_tokens(engine: EmbeddedEngine) -> None:
    plain = await generate(engine, PROMPT, max_new_tokens=6)
    (only,) = await chunks_of(submit(engine, PROMPT, max_new_tokens=6, stop_token_ids=(plain[0],)))
    assert (only.token_id, only.finish_reason) == (plain[0], "stop")
    chunks = await chunks_of(
        submit(engine, PROMPT, max_new_tokens=6, min_new_tokens=4, stop_token_ids=tuple(set(plain)))
    )
    tokens = tokens_of(chunks)
    assert len(tokens) >= 4
    assert not set(plain) & set(tokens[:4])
