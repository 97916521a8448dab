"""Log-probabilities against transformers' logits: to 1e-4 in float32, however they came about."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.engine.logprobs import MAX_SCORES, check_logprobs, score, scored_room
from hotswap.seams import GenerateRequest, LogprobsWanted, SamplingParams, TokenChunk, TokenLogprob
from hotswap.types import PauseMode, WeightStamp
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import (
    Turnstile,
    chunks_of,
    generate,
    load_while_paused,
    prompts,
    random_ids,
    tokens_of,
)
from tests.unit.engine.test_oracle import reference, reference_logits

PROMPT = random_ids(40, seed=4)
EVERYTHING = LogprobsWanted(input_start=0, top=4, token_ids=(7, 0, 7))


async def scored(
    engine: EmbeddedEngine,
    ids: Sequence[int],
    wanted: LogprobsWanted | None = EVERYTHING,
    *,
    rid: str = "r",
    **sampling: Any,
) -> list[TokenChunk]:
    return await chunks_of(submitted(engine, ids, wanted, rid=rid, **sampling))


def submitted(
    engine: EmbeddedEngine,
    ids: Sequence[int],
    wanted: LogprobsWanted | None = EVERYTHING,
    *,
    rid: str = "r",
    **sampling: Any,
) -> Any:
    params = SamplingParams(**{"ignore_eos": True, "max_new_tokens": 8, **sampling})
    return engine.submit(GenerateRequest(rid=rid, input_ids=ids, sampling=params, logprobs=wanted))


def outputs_of(chunks: Sequence[TokenChunk]) -> list[TokenLogprob]:
    found = [chunk.logprob for chunk in chunks if chunk.token_id is not None]
    assert [one.token_id for one in found if one is not None] == tokens_of(chunks)
    return [one for one in found if one is not None]


def inputs_of(chunks: Sequence[TokenChunk]) -> list[TokenLogprob]:
    first, *later = chunks
    assert not any(chunk.input_logprobs for chunk in later)
    return list(first.input_logprobs)


def check(likely: torch.Tensor, found: Sequence[TokenLogprob], wanted: LogprobsWanted) -> None:
    """``likely`` ``[found x vocabulary]`` is what transformers says."""
    assert likely.shape[0] == len(found)
    for row, one in zip(likely, found, strict=True):
        assert one.logprob == pytest.approx(row[one.token_id].item(), abs=1e-4)
        values = [value for _, value in one.top]
        assert values == pytest.approx(row.topk(wanted.top).values.tolist(), abs=1e-4)
        assert [row[token].item() for token, _ in one.top] == pytest.approx(values, abs=1e-4)
        assert tuple(token for token, _ in one.asked) == wanted.token_ids
        for token, value in one.asked:
            assert value == pytest.approx(row[token].item(), abs=1e-4)


def check_all(
    model: Any, ids: list[int], chunks: Sequence[TokenChunk], wanted: LogprobsWanted = EVERYTHING
) -> None:
    out = tokens_of(chunks)
    likely = reference_logits(model, [*ids, *out]).log_softmax(-1)
    check(likely[len(ids) - 1 : -1], outputs_of(chunks), wanted)
    inputs, start = inputs_of(chunks), wanted.input_start
    if start is None:
        assert inputs == []
        return
    assert [one.token_id for one in inputs] == ids[start:]
    if start == 0:
        assert inputs[0] == TokenLogprob(token_id=ids[0], logprob=None)
        inputs, start = inputs[1:], 1
    check(likely[start - 1 : len(ids) - 1], inputs, wanted)


async def retract(engine: EmbeddedEngine, turnstile: Turnstile) -> None:
    """Pause right after the pass that the turnstile holds."""
    pausing = asyncio.ensure_future(engine.pause(PauseMode.RETRACT))
    await anyio.lowlevel.checkpoint()
    turnstile.open()
    await pausing


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
@pytest.mark.parametrize("start", [None, 0, 1, 2, 39, 40])
async def test_output_and_input_scores_are_those_of_transformers(
    checkpoint: Make, arch: str, start: int | None
) -> None:
    directory = checkpoint(arch=arch)
    wanted = LogprobsWanted(input_start=start, top=3, token_ids=(1, 2))
    async with EmbeddedEngine.from_directory(directory, device="cpu") as engine:
        check_all(reference(directory), PROMPT, await scored(engine, PROMPT, wanted), wanted)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "seed": 3, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 1.7, "top_k": 1},
        {"frequency_penalty": 1.5, "presence_penalty": -0.5, "repetition_penalty": 1.4},
        {"min_new_tokens": 8, "stop_token_ids": tuple(range(200))},
    ],
)
async def test_they_are_of_the_logits_before_anything_is_done_to_them(
    checkpoint: Make, engine: EmbeddedEngine, sampling: dict[str, Any]
) -> None:
    chunks = await scored(engine, PROMPT, **sampling)
    check_all(reference(checkpoint(arch="qwen3")), PROMPT, chunks)


async def test_output_is_scored_at_its_temperature_and_a_prompt_at_one(
    checkpoint: Make, engine: EmbeddedEngine
) -> None:
    chunks = await scored(engine, PROMPT, temperature=1.7, seed=3)
    logits = reference_logits(reference(checkpoint(arch="qwen3")), [*PROMPT, *tokens_of(chunks)])
    length = len(PROMPT)
    check((logits / 1.7).log_softmax(-1)[length - 1 : -1], outputs_of(chunks), EVERYTHING)
    check(logits.log_softmax(-1)[: length - 1], inputs_of(chunks)[1:], EVERYTHING)


async def test_a_prompt_longer_than_a_slice_of_rows(
    checkpoint: Make, engine: EmbeddedEngine
) -> None:
    ids = random_ids(200, seed=1)
    check_all(reference(checkpoint(arch="qwen3")), ids, await scored(engine, ids))


async def test_those_who_ask_differently_run_together(
    checkpoint: Make, engine: EmbeddedEngine
) -> None:
    model, many = reference(checkpoint(arch="qwen3")), prompts(5)
    asked = [
        None,
        LogprobsWanted(),
        EVERYTHING,
        LogprobsWanted(top=2),
        LogprobsWanted(input_start=3, token_ids=(9,)),
    ]
    running = [
        submitted(engine, ids, wanted, rid=str(number))
        for number, (ids, wanted) in enumerate(zip(many, asked, strict=True))
    ]
    for ids, wanted, generation in zip(many, asked, running, strict=True):
        chunks = await chunks_of(generation)
        if wanted is None:
            assert all(one.logprob is None and not one.input_logprobs for one in chunks)
        else:
            check_all(model, ids, chunks, wanted)


@pytest.mark.parametrize(("start", "cached"), [(0, 0), (1, 0), (30, 29), (None, 39)])
async def test_a_cached_prefix_is_computed_again_where_it_is_scored(
    checkpoint: Make, engine: EmbeddedEngine, start: int | None, cached: int
) -> None:
    await generate(engine, PROMPT, max_new_tokens=4)
    wanted = LogprobsWanted(input_start=start, top=2)
    chunks = await scored(engine, PROMPT, wanted)
    assert chunks[0].cached_tokens == cached
    check_all(reference(checkpoint(arch="qwen3")), PROMPT, chunks, wanted)


async def test_a_retracted_request_goes_on_with_its_scores(
    checkpoint: Make, engine: EmbeddedEngine
) -> None:
    turnstile = Turnstile(engine, passes=3)
    generation = submitted(engine, PROMPT)
    await turnstile.reached()
    await retract(engine, turnstile)
    await engine.resume()
    chunks = await chunks_of(generation)
    assert chunks[-1].num_retractions == 1
    check_all(reference(checkpoint(arch="qwen3")), PROMPT, chunks)


async def test_after_a_swap_scores_are_those_of_the_weights_that_made_them(
    checkpoint: Make,
) -> None:
    old, new = checkpoint(arch="llama", seed=1), checkpoint(arch="llama", seed=2)
    async with EmbeddedEngine.from_directory(old, device="cpu") as engine:
        turnstile = Turnstile(engine, passes=3)
        generation = submitted(engine, PROMPT)
        await turnstile.reached()
        await retract(engine, turnstile)
        await load_while_paused(engine, new, WeightStamp(version="2", epoch=1))
        await engine.resume()
        chunks = await chunks_of(generation)
    out = tokens_of(chunks)
    before = sum(chunk.stamp.epoch == 0 for chunk in chunks)
    assert before == 4
    for directory, rows in ((old, slice(0, before)), (new, slice(before, None))):
        likely = reference_logits(reference(directory), [*PROMPT, *out]).log_softmax(-1)
        check(likely[len(PROMPT) - 1 : -1][rows], outputs_of(chunks)[rows], EVERYTHING)
    likely = reference_logits(reference(old), PROMPT).log_softmax(-1)
    check(likely[:-1], inputs_of(chunks)[1:], EVERYTHING)


@pytest.mark.parametrize("start", [None, 0, 17])
async def test_prompts_that_are_computed_in_pieces(checkpoint: Make, start: int | None) -> None:
    directory = checkpoint(arch="qwen3")
    # The last of them begins like the first, which runs meanwhile.
    many = [random_ids(90, seed=1), random_ids(37, seed=2), random_ids(5, seed=3)]
    many.append([*many[0][:80], *random_ids(20, seed=4)])
    wanted = LogprobsWanted(input_start=start, top=2, token_ids=(3,))
    first = None if start is None else min(start, 4)
    each = [replace(wanted, input_start=first if len(ids) < 10 else start) for ids in many]
    async with EmbeddedEngine.from_directory(
        directory, device="cpu", chunked_prefill_size=8
    ) as engine:
        running = [
            submitted(engine, ids, one, rid=str(number))
            for number, (ids, one) in enumerate(zip(many, each, strict=True))
        ]
        ended = [await chunks_of(generation) for generation in running]
    model = reference(directory)
    for ids, one, chunks in zip(many, each, ended, strict=True):
        check_all(model, ids, chunks, one)


async def test_a_prompt_that_is_retracted_half_way_is_scored_anew(checkpoint: Make) -> None:
    old, new = checkpoint(arch="llama", seed=1), checkpoint(arch="llama", seed=2)
    async with EmbeddedEngine.from_directory(old, device="cpu", chunked_prefill_size=8) as engine:
        turnstile = Turnstile(engine, passes=2)
        generation = submitted(engine, PROMPT)
        await turnstile.reached()
        await retract(engine, turnstile)
        await load_while_paused(engine, new, WeightStamp(version="2", epoch=1))
        await engine.resume()
        chunks = await chunks_of(generation)
    assert {chunk.stamp.epoch for chunk in chunks} == {1}
    check_all(reference(new), PROMPT, chunks)


async def test_a_prompt_that_is_scored_beside_its_twin_is_computed_again(
    checkpoint: Make, engine: EmbeddedEngine
) -> None:
    twins = [submitted(engine, PROMPT, rid=rid) for rid in "ab"]
    for generation in twins:
        check_all(reference(checkpoint(arch="qwen3")), PROMPT, await chunks_of(generation))


async def test_a_prompt_is_scored_without_putting_anything_out(
    checkpoint: Make, engine: EmbeddedEngine
) -> None:
    (only,) = await scored(engine, PROMPT, max_new_tokens=0)
    assert (only.token_id, only.finish_reason, only.logprob) == (None, "length", None)
    likely = reference_logits(reference(checkpoint(arch="qwen3")), PROMPT).log_softmax(-1)
    check(likely[:-1], only.input_logprobs[1:], EVERYTHING)
    # Its keys and values serve the next one.
    chunks = await scored(engine, PROMPT, LogprobsWanted())
    assert chunks[0].cached_tokens == len(PROMPT) - 1


async def test_a_request_that_ends_before_its_first_token_has_no_scores(
    engine: EmbeddedEngine,
) -> None:
    await engine.pause(PauseMode.IN_PLACE)
    generation = submitted(engine, PROMPT)
    generation.abort()
    (only,) = await chunks_of(generation)
    await engine.resume()
    assert (only.finish_reason, only.input_logprobs) == ("abort", ())


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"input_start": 41}, "input position 41"),
        ({"input_start": -1}, "input position -1"),
        ({"top": 129}, "129 top"),
        ({"top": -1}, "-1 top"),
        ({"token_ids": (3, 10_000)}, "token id 10000"),
        ({"token_ids": (-1,)}, "token id -1"),
        ({"token_ids": (1,) * 1025}, "1025 token ids"),
    ],
)
async def test_what_cannot_be_scored_is_refused(
    checkpoint: Make, wanted: dict[str, Any], named: str
) -> None:
    directory = checkpoint(arch="llama", max_position_embeddings=1024)
    async with EmbeddedEngine.from_directory(directory, device="cpu") as engine:
        with pytest.raises(ValueError, match=named):
            submitted(engine, PROMPT, LogprobsWanted(**wanted))
        assert engine.in_flight.total == 0


def test_a_prompt_is_scored_as_far_as_a_reply_has_place() -> None:
    wanted = LogprobsWanted(input_start=1, top=128, token_ids=(1,) * 1024)
    check_logprobs(wanted, prompt_length=1 + 2**21 // 1153, vocab_size=2)
    with pytest.raises(ValueError, match="2097307 log-probabilities of the prompt asked for"):
        check_logprobs(wanted, prompt_length=2 + 2**21 // 1153, vocab_size=2)


@pytest.mark.parametrize(
    ("wanted", "length", "room"),
    [
        (LogprobsWanted(), 100_000, MAX_SCORES),
        (LogprobsWanted(top=20), 100_000, 199_728),
        (LogprobsWanted(input_start=0, top=20), 99_864, 99_864),
        (LogprobsWanted(token_ids=(1,) * 1023), 5, 4096),
    ],
)
def test_output_is_bounded_by_what_is_scored(
    wanted: LogprobsWanted, length: int, room: int
) -> None:
    assert scored_room(wanted, prompt_length=length) == room


async def test_what_a_request_could_write_at_worst_does_not_refuse_it(checkpoint: Make) -> None:
    directory = checkpoint(arch="llama", max_position_embeddings=2**16)
    async with EmbeddedEngine.from_directory(directory, device="cpu") as engine:
        wanted = LogprobsWanted(input_start=0, top=20)
        generation = submitted(engine, PROMPT, wanted, max_new_tokens=32_768)
        chunks = []
        async for chunk in generation:
            chunks.append(chunk)
            if len(chunks) == 3:
                generation.abort()
    assert chunks[-1].finish_reason == "abort"
    assert {len(one.top) for one in outputs_of(chunks)} == {20}


async def test_a_text_ends_where_a_reply_has_no_place_for_its_scores(
    checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotswap.engine.logprobs.MAX_SCORES", len(PROMPT) * 3 + 17)
    async with EmbeddedEngine.from_directory(checkpoint(arch="llama"), device="cpu") as engine:
        wanted = LogprobsWanted(input_start=0, top=1, token_ids=(5,))
        chunks = await scored(engine, PROMPT, wanted, max_new_tokens=50)
    assert (chunks[-1].finish_reason, len(outputs_of(chunks))) == ("length", 5)


def test_more_likely_tokens_than_there_are() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    (one,) = score(logits, [2], [LogprobsWanted(top=9)])
    assert [token for token, _ in one.top] == [1, 2, 0]
    assert sum(torch.tensor([value for _, value in one.top]).exp().tolist()) == pytest.approx(1.0)
    assert score(logits[:0], [], []) == []


def test_bfloat16_logits_are_scored_in_float32() -> None:
    logits = torch.linspace(-4, 4, 300)[None].bfloat16()
    (one,) = score(logits, [17], [LogprobsWanted()])
    assert one.logprob == pytest.approx(logits.double().log_softmax(-1)[0, 17].item(), abs=1e-5)
