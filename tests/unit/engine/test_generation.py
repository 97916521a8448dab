"""One request from submit to its last chunk: stops, sampling, aborts, refusals."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
import pytest

from hotswap.engine import EmbeddedEngine
from hotswap.engine.kv import KvCache
from hotswap.engine.loading import load_model
from hotswap.engine.prefix_cache import PrefixCache
from hotswap.engine.sampling import Sampler
from hotswap.errors import QueueFull
from hotswap.seams import Engine, GenerateRequest, Generation, Generator, Inspector
from hotswap.testing.tiny_tokenizer import EOS_ID
from hotswap.types import InFlightCounts, PauseMode, WeightStamp
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import (
    Turnstile,
    chunks_of,
    generate,
    generate_all,
    prompts,
    submit,
    tokens_of,
)

PROMPT = [5, 6, 7, 8]


async def test_the_engine_is_everything_it_says(engine: EmbeddedEngine) -> None:
    as_engine: Engine = engine
    assert as_engine is engine
    assert isinstance(engine, Generator)
    assert isinstance(engine, Inspector)
    generation: Generation = submit(engine, PROMPT, max_new_tokens=1)
    assert [chunk.finish_reason async for chunk in generation] == ["length"]


async def test_every_chunk_has_its_token_and_only_the_last_a_reason(
    engine: EmbeddedEngine,
) -> None:
    chunks = await chunks_of(submit(engine, PROMPT, max_new_tokens=7))
    assert [chunk.finish_reason for chunk in chunks] == [None] * 6 + ["length"]
    assert len(tokens_of(chunks)) == 7
    assert {chunk.stamp for chunk in chunks} == {WeightStamp()}
    assert engine.in_flight == InFlightCounts()


async def test_a_batch_gives_each_what_it_gives_alone(engine: EmbeddedEngine) -> None:
    alone = []
    for ids in prompts(6):
        alone.append(await generate(engine, ids, max_new_tokens=15))
        await engine.flush()
    assert await generate_all(engine, prompts(6), max_new_tokens=15) == alone


async def test_an_end_of_text_ends_it_unless_ignored(checkpoint: Make) -> None:
    async with EmbeddedEngine.from_directory(checkpoint(arch="qwen3")) as engine:
        whole = await generate(engine, PROMPT, max_new_tokens=30)
        # Any token will do as an end of text; the one of the files is seldom likely.
        ends = whole[9]
        at = whole.index(ends)
    directory = checkpoint(arch="qwen3")
    engine = EmbeddedEngine.from_directory(directory)
    assert engine.describe()["eos_token_ids"] == [EOS_ID]
    engine = EmbeddedEngine(
        load_model(directory), codec=None, eos_token_ids=frozenset({ends}), path=directory
    )
    async with engine:
        chunks = await chunks_of(submit(engine, PROMPT, max_new_tokens=30, ignore_eos=False))
        assert tokens_of(chunks) == whole[: at + 1]
        assert (chunks[-1].finish_reason, chunks[-1].matched_stop) == ("stop", ends)
        assert await generate(engine, PROMPT, max_new_tokens=30) == whole


async def test_stop_token_ids_count_even_when_eos_is_ignored(engine: EmbeddedEngine) -> None:
    whole = await generate(engine, PROMPT, max_new_tokens=30)
    stop = whole[5]
    chunks = await chunks_of(
        submit(engine, PROMPT, max_new_tokens=30, stop_token_ids=(stop, 10_000))
    )
    assert tokens_of(chunks) == whole[: whole.index(stop) + 1]
    assert (chunks[-1].finish_reason, chunks[-1].matched_stop) == ("stop", stop)


async def test_a_stop_string_ends_at_the_token_that_completes_it(engine: EmbeddedEngine) -> None:
    whole = await generate(engine, PROMPT, max_new_tokens=40)
    text = engine.decode(whole)
    # A string of readable characters that several tokens make together.
    spans = [text[at : at + 4] for at in range(8, len(text) - 4)]
    stop = next(span for span in spans if "\N{REPLACEMENT CHARACTER}" not in span)
    chunks = await chunks_of(submit(engine, PROMPT, max_new_tokens=40, stop=("zzzz", stop)))
    seen = tokens_of(chunks)
    assert seen == whole[: len(seen)]
    assert stop in engine.decode(seen)
    assert stop not in engine.decode(seen[:-1])
    assert (chunks[-1].finish_reason, chunks[-1].matched_stop) == ("stop", stop)


async def test_the_context_bounds_the_output(checkpoint: Make) -> None:
    directory = checkpoint(max_position_embeddings=24)
    async with EmbeddedEngine.from_directory(directory) as engine:
        chunks = await chunks_of(submit(engine, PROMPT, max_new_tokens=100))
        assert len(tokens_of(chunks)) == 20
        assert chunks[-1].finish_reason == "length"
        assert len(await generate(engine, list(range(23)))) == 1
        with pytest.raises(ValueError, match="24 tokens, wanted 1 to 23"):
            submit(engine, list(range(24)))


async def test_a_seed_repeats_a_draw(engine: EmbeddedEngine) -> None:
    hot = {"max_new_tokens": 20, "temperature": 1.5}
    first = await generate(engine, PROMPT, seed=1, **hot)
    assert await generate(engine, PROMPT, seed=1, **hot) == first
    assert await generate(engine, PROMPT, seed=2, **hot) != first
    free = [tuple(await generate(engine, PROMPT, **hot)) for _ in range(3)]
    assert len(set(free)) == 3


async def test_draws_do_not_depend_on_the_company(engine: EmbeddedEngine) -> None:
    options = {"max_new_tokens": 15, "temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": 5}
    alone = []
    for ids in prompts(4):
        alone.append(await generate(engine, ids, **options))
    await engine.flush()
    assert await generate_all(engine, prompts(4), **options) == alone


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-6},
        {"temperature": 1e-9},
        {"temperature": 0.01},
    ],
)
async def test_cold_sampling_is_greedy(sampling: dict[str, Any], engine: EmbeddedEngine) -> None:
    greedy = await generate(engine, PROMPT, max_new_tokens=20)
    assert await generate(engine, PROMPT, max_new_tokens=20, **sampling) == greedy


@pytest.mark.parametrize("after", range(5))
async def test_abort_at_any_token(after: int, engine: EmbeddedEngine) -> None:
    whole = await generate(engine, PROMPT, max_new_tokens=30)
    gate = Turnstile(engine, passes=after)
    generation = submit(engine, PROMPT, max_new_tokens=30)
    await gate.reached()
    generation.abort()
    generation.abort()
    gate.open()
    chunks = await chunks_of(generation)
    generation.abort()
    assert tokens_of(chunks) == whole[: after + 1]
    assert (chunks[-1].finish_reason, chunks[-1].token_id) == ("abort", None)
    assert engine.in_flight == InFlightCounts()
    assert await chunks_of(generation) == []


async def test_abort_of_a_waiting_request(engine: EmbeddedEngine) -> None:
    await engine.pause(PauseMode.IN_PLACE)
    first, second = (submit(engine, PROMPT, rid=rid, max_new_tokens=3) for rid in "ab")
    first.abort()
    assert [chunk.finish_reason for chunk in await chunks_of(first)] == ["abort"]
    assert engine.in_flight == InFlightCounts(waiting=1)
    await engine.resume()
    assert len(tokens_of(await chunks_of(second))) == 3


async def test_a_consumer_that_vanished_keeps_nobody_waiting(engine: EmbeddedEngine) -> None:
    gone = submit(engine, PROMPT, rid="gone", max_new_tokens=50)
    await anext(gone)
    assert len(await generate(engine, PROMPT, max_new_tokens=5)) == 5
    # Its chunks are still there for whoever comes back.
    assert len(tokens_of(await chunks_of(gone))) == 49


async def test_a_cancelled_reader_loses_no_chunk(engine: EmbeddedEngine) -> None:
    whole = await generate(engine, PROMPT, max_new_tokens=10)
    gate = Turnstile(engine, passes=4)
    generation = submit(engine, PROMPT, max_new_tokens=10)
    await gate.reached()
    seen = [await anext(generation) for _ in range(4)]
    reading = asyncio.ensure_future(anext(generation))
    await anyio.lowlevel.checkpoint()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    gate.open()
    assert tokens_of([*seen, *await chunks_of(generation)]) == whole


async def test_a_failing_pass_ends_its_requests_and_no_others(
    engine: EmbeddedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_module: object, _inputs: object) -> None:
        raise RuntimeError("the pass failed on purpose")

    gate = Turnstile(engine, passes=2)
    first = submit(engine, PROMPT, rid="a", max_new_tokens=9)
    await gate.reached()
    hook = engine.model.model.layers[1].register_forward_pre_hook(fail)
    gate.open()
    with caplog.at_level(logging.ERROR):
        chunks = await chunks_of(first)
    hook.remove()
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "error"]
    assert "the pass failed on purpose" in caplog.text
    assert engine.alive
    assert engine.in_flight == InFlightCounts()
    assert len(await generate(engine, PROMPT, max_new_tokens=5)) == 5


async def test_in_flight_counts_from_submit_on(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3")
    engine = EmbeddedEngine.from_directory(directory, max_running_requests=2)
    open_ones = [submit(engine, PROMPT, rid=str(n), max_new_tokens=4) for n in range(3)]
    assert engine.in_flight == InFlightCounts(running=0, waiting=3, holding_kv=0)
    gate = Turnstile(engine, passes=1)
    async with engine:
        await gate.reached()
        assert engine.in_flight == InFlightCounts(running=2, waiting=1, holding_kv=2)
        gate.open()
        for generation in open_ones:
            assert len(tokens_of(await chunks_of(generation))) == 4
        assert engine.in_flight == InFlightCounts()


@pytest.mark.parametrize(
    ("ids", "sampling", "named"),
    [
        ([], {}, "0 tokens"),
        ([320], {}, "token id 320"),
        ([-1], {}, "token id -1"),
        (PROMPT, {"max_new_tokens": -1}, "max_new_tokens"),
        (PROMPT, {"temperature": -0.1}, "temperature"),
        (PROMPT, {"temperature": float("nan")}, "temperature"),
        (PROMPT, {"temperature": float("inf")}, "temperature"),
        (PROMPT, {"top_p": 0.0}, "top_p"),
        (PROMPT, {"top_p": 1.1}, "top_p"),
        (PROMPT, {"top_k": -2}, "top_k"),
        (PROMPT, {"stop": ("",)}, "empty string"),
    ],
)
async def test_refused_at_submit(
    ids: list[int], sampling: dict[str, Any], named: str, engine: EmbeddedEngine
) -> None:
    with pytest.raises(ValueError, match=named):
        submit(engine, ids, **sampling)
    assert engine.in_flight == InFlightCounts()


async def test_a_rid_is_unique_while_in_flight(engine: EmbeddedEngine) -> None:
    await engine.pause(PauseMode.ABORT)
    first = submit(engine, PROMPT, rid="same", max_new_tokens=2)
    with pytest.raises(ValueError, match="'same' is in flight"):
        submit(engine, PROMPT, rid="same", max_new_tokens=2)
    await engine.resume()
    assert len(tokens_of(await chunks_of(first))) == 2
    assert len(await generate(engine, PROMPT, rid="same", max_new_tokens=2)) == 2


async def test_the_queue_is_bounded(checkpoint: Make) -> None:
    async with EmbeddedEngine.from_directory(
        checkpoint(arch="qwen3"), max_running_requests=1, max_queued=2
    ) as engine:
        gate = Turnstile(engine, passes=1)
        open_ones = [submit(engine, PROMPT, rid="a", max_new_tokens=2)]
        await gate.reached()
        open_ones += [submit(engine, PROMPT, rid=rid, max_new_tokens=2) for rid in "bc"]
        with pytest.raises(QueueFull, match="2 requests wait already, wanted fewer than 2") as full:
            submit(engine, PROMPT, rid="d")
        assert full.value.retryable
        gate.open()
        for generation in open_ones:
            assert len(tokens_of(await chunks_of(generation))) == 2
        # Those that could run at once do not count as queued, whatever keeps them.
        await engine.pause(PauseMode.ABORT)
        open_ones = [submit(engine, PROMPT, rid=rid, max_new_tokens=2) for rid in "abc"]
        with pytest.raises(QueueFull, match="3 requests wait already, wanted fewer than 3"):
            submit(engine, PROMPT, rid="d")
        await engine.resume()
        for generation in open_ones:
            assert len(tokens_of(await chunks_of(generation))) == 2
        assert len(await generate(engine, PROMPT, rid="c", max_new_tokens=2)) == 2


async def test_without_a_tokenizer_only_ids_are_served(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3", tokenizer=False)
    async with EmbeddedEngine.from_directory(directory) as engine:
        assert engine.describe()["has_tokenizer"] is False
        for use in (lambda: engine.encode("a"), lambda: engine.decode([1])):
            with pytest.raises(ValueError, match="no tokenizer"):
                use()
        with pytest.raises(ValueError, match="stop strings need a tokenizer"):
            submit(engine, PROMPT, stop=("a",))
        assert len(await generate(engine, PROMPT, max_new_tokens=3)) == 3


async def test_text_goes_in_and_comes_out(engine: EmbeddedEngine) -> None:
    text = "Grüße, 日本 \n the end"
    assert engine.decode(engine.encode(text)) == text
    assert engine.decode([*engine.encode(text), EOS_ID]) == text
    assert engine.describe()["has_tokenizer"] is True
    request = GenerateRequest(rid="default", input_ids=engine.encode("a"))
    chunks = await chunks_of(engine.submit(request))
    assert chunks[-1].finish_reason in ("length", "stop")


async def test_weights_that_are_no_numbers_end_requests_with_an_error(
    engine: EmbeddedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    norm = engine.model.model.norm.weight
    good = norm.detach().clone()
    norm.fill_(float("nan"))
    (end,) = await chunks_of(submit(engine, PROMPT, max_new_tokens=4))
    assert (end.token_id, end.finish_reason) == (None, "error")
    assert end.error is not None
    assert "not finite under weight epoch 0 (version None)" in end.error
    # Whoever reads the request tells of it: one line is enough.
    assert caplog.records == []
    norm.copy_(good)
    assert len(await generate(engine, PROMPT, max_new_tokens=4)) == 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_logits_that_are_not_finite_end_their_own_request_with_the_reason(
    engine: EmbeddedEngine, caplog: pytest.LogCaptureFixture, temperature: float
) -> None:
    alone = await generate(engine, PROMPT, max_new_tokens=6)
    spoilt = min(set(range(10, 30)) - {*alone})
    engine.model.model.embed_tokens.weight[spoilt] = float("nan")
    gate = Turnstile(engine, passes=2)
    other = submit(engine, PROMPT, rid="other", max_new_tokens=6)
    await gate.reached()
    bad = submit(engine, [5, spoilt, 7], rid="bad", max_new_tokens=4, temperature=temperature)
    gate.open()
    (end,) = await chunks_of(bad)
    assert (end.token_id, end.finish_reason) == (None, "error")
    assert end.error is not None
    assert end.error.startswith("its logits are not finite under weight epoch 0 (version None)")
    assert tokens_of(await chunks_of(other)) == alone
    assert "Traceback" not in caplog.text
    assert engine.in_flight == InFlightCounts()


async def test_the_smallest_top_p_harms_nobody(engine: EmbeddedEngine) -> None:
    alone = await generate(engine, PROMPT, max_new_tokens=8)
    gate = Turnstile(engine, passes=2)
    other = submit(engine, PROMPT, rid="other", max_new_tokens=8)
    await gate.reached()
    tiny = submit(engine, PROMPT, rid="tiny", max_new_tokens=8, temperature=1.0, top_p=1e-46)
    gate.open()
    assert tokens_of(await chunks_of(other)) == alone
    # Nothing but the likeliest is left, whatever the temperature.
    assert tokens_of(await chunks_of(tiny)) == alone


@pytest.mark.parametrize(
    ("where", "name"),
    [(Sampler, "draw"), (KvCache, "reserve"), (PrefixCache, "fill"), (PrefixCache, "insert")],
    ids=["draw", "reserve", "fill", "insert"],
)
async def test_what_fails_for_one_request_ends_that_one(
    where: type,
    name: str,
    checkpoint: Make,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with EmbeddedEngine.from_directory(checkpoint(arch="qwen3")) as engine:
        alone = await generate(engine, PROMPT, max_new_tokens=12)
        gate = Turnstile(engine, passes=2)
        other = submit(engine, PROMPT, rid="other", max_new_tokens=12)
        await gate.reached()
        calls: list[object] = []

        def fail(*_arguments: object, **_options: object) -> int:
            calls.append(None)
            monkeypatch.undo()
            raise RuntimeError("failed on purpose")

        monkeypatch.setattr(where, name, fail)
        unlucky = submit(engine, PROMPT, rid="unlucky", max_new_tokens=1, temperature=1.0)
        gate.open()
        ended = await chunks_of(unlucky)
        assert tokens_of(await chunks_of(other)) == alone
        assert len(calls) == 1
        # The text of the one that could not be remembered was sent already.
        assert ended[-1].finish_reason == ("length" if name == "insert" else "error")
        assert "request unlucky ends: " in caplog.text
        assert "failed on purpose" in caplog.text
        assert engine.in_flight == InFlightCounts()
        assert await generate(engine, PROMPT, max_new_tokens=12) == alone
