"""Pauses in every mode, a true flush, aborts that end the stream, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anyio
import hotswap_transformers
import pytest
import torch
from hotswap_transformers import TransformersEngine

from hotswap.errors import Overtaken, QueueFull
from hotswap.seams import GenerateRequest, Generator, Inspector, LogprobsWanted, Resettable
from hotswap.types import InFlightCounts, PauseMode, WeightStamp

PROMPTS = [[number, *range(3 * number + 1)] for number in range(4)]
LONG = list(range(1, 80))
SHARED = 64  # tokens of LONG in whole blocks of 32


async def posted(task: asyncio.Future[Any]) -> None:
    """Let a fresh task run until it waits: what it posts to the engine is posted then."""
    await anyio.lowlevel.checkpoint()
    assert not task.done()


async def test_it_is_everything_that_routes_ask_for(drive: Any) -> None:
    async with drive.running() as engine:
        for protocol in (Generator, Inspector, Resettable):
            assert isinstance(engine, protocol)
        assert engine.alive
        await engine.beat()
        described = engine.describe()
        assert described["architectures"] == ["LlamaForCausalLM"]
        assert described["max_total_tokens"] == engine.load.kv_tokens_total == 2048
        json.dumps(described)
        assert engine.decode(engine.encode("a b")) == "a b"
        assert repr(engine) == (
            "<TransformersEngine LlamaForCausalLM <EngineLoop alive> running=0 waiting=0>"
        )
        assert torch.equal(
            await engine.read_weight("model.norm.weight", 2),
            engine.model.model.norm.weight[:2],
        )
    assert not engine.alive
    engine.close()


async def test_abort_ends_everything_with_what_it_has(drive: Any) -> None:
    async with drive.running(max_running_requests=2) as engine:
        whole = await drive.generate(engine, PROMPTS, max_new_tokens=30)
        passes = drive.passes(engine, count=5)
        open_ones = await drive.submit_together(engine, PROMPTS, max_new_tokens=30)
        await passes.held()
        assert engine.in_flight == InFlightCounts(running=2, waiting=2, holding_kv=2)
        pausing = asyncio.ensure_future(engine.pause(PauseMode.ABORT))
        await posted(pausing)
        passes.let_go()
        assert (await pausing).num_aborted == 4
        assert engine.in_flight == InFlightCounts()
        ended = [await drive.chunks(generation) for generation in open_ones]
    assert [chunks[-1].finish_reason for chunks in ended] == ["abort"] * 4
    assert [drive.tokens(chunks) for chunks in ended] == [whole[0][:6], whole[1][:6], [], []]


async def test_retract_computes_again_to_the_same_tokens(drive: Any) -> None:
    sampling = {"max_new_tokens": 24, "temperature": 0.8, "seed": 11}
    async with drive.running(max_running_requests=3) as engine:
        whole = await drive.generate(engine, PROMPTS, **sampling)
        passes = drive.passes(engine, count=7)
        open_ones = await drive.submit_together(engine, PROMPTS, **sampling)
        await passes.held()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.RETRACT))
        await posted(pausing)
        passes.let_go()
        assert (await pausing).num_aborted == 0
        assert engine.in_flight == InFlightCounts(running=0, waiting=4, holding_kv=0)
        await engine.resume()
        ended = [await drive.chunks(generation) for generation in open_ones]
        assert engine.load.retractions == 3
    assert [drive.tokens(chunks) for chunks in ended] == whole
    assert [chunks[-1].num_retractions for chunks in ended] == [1, 1, 1, 0]


async def test_in_place_goes_on_from_where_it_stood(drive: Any) -> None:
    async with drive.running() as engine:
        whole = await drive.generate(engine, [LONG], max_new_tokens=20)
        passes = drive.passes(engine, count=4)
        generation = drive.submit(engine, LONG, max_new_tokens=20)
        await passes.held()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.IN_PLACE))
        await posted(pausing)
        passes.let_go()
        await pausing
        assert engine.in_flight == InFlightCounts(running=1, waiting=0, holding_kv=1)
        await engine.resume()
        chunks = await drive.chunks(generation)
    assert drive.tokens(chunks) == whole[0]
    assert chunks[-1].num_retractions == 0


async def test_wait_lets_what_runs_end_and_starts_nothing(drive: Any) -> None:
    async with drive.running(max_running_requests=1) as engine:
        passes = drive.passes(engine, count=2)
        first, second = await drive.submit_together(engine, [[1, 2], [3, 4]], max_new_tokens=9)
        await passes.held()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
        await posted(pausing)
        passes.let_go()
        assert (await pausing).num_aborted == 0
        assert len(drive.tokens(await drive.chunks(first))) == 9
        assert engine.in_flight == InFlightCounts(running=0, waiting=1, holding_kv=0)
        await engine.resume()
        assert len(drive.tokens(await drive.chunks(second))) == 9


async def test_a_resume_overtakes_a_pause_that_waits(drive: Any) -> None:
    async with drive.running() as engine:
        passes = drive.passes(engine, count=1)
        generation = drive.submit(engine, [1, 2], max_new_tokens=9)
        await passes.held()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
        await posted(pausing)
        resuming = asyncio.ensure_future(engine.resume())
        await posted(resuming)
        passes.let_go()
        await resuming
        with pytest.raises(Overtaken):
            await pausing
        assert len(drive.tokens(await drive.chunks(generation))) == 9


async def test_a_pause_that_is_given_up_leaves_the_engine_running(drive: Any) -> None:
    async with drive.running() as engine:
        passes = drive.passes(engine, count=1)
        generation = drive.submit(engine, [1, 2], max_new_tokens=9)
        await passes.held()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
        await posted(pausing)
        pausing.cancel()
        passes.let_go()
        await asyncio.wait([pausing])
        assert pausing.cancelled()
        assert len(drive.tokens(await drive.chunks(generation))) == 9
        assert (await drive.generate(engine, [[5]], max_new_tokens=2))[0]


async def test_a_flush_leaves_nothing_to_begin_with(drive: Any) -> None:
    async with drive.running() as engine:
        first, again = [
            await drive.chunks(drive.submit(engine, LONG, max_new_tokens=4)) for _ in range(2)
        ]
        assert [chunks[0].cached_tokens for chunks in (first, again)] == [0, SHARED]
        assert await engine.flush() == SHARED // 32
        assert await engine.flush() == 0
        after = await drive.chunks(drive.submit(engine, LONG, max_new_tokens=4))
        assert after[0].cached_tokens == 0
        assert drive.tokens(first) == drive.tokens(again) == drive.tokens(after)
        assert engine.load.cache_hits == 1


async def test_what_runs_during_a_flush_shares_nothing_either(drive: Any) -> None:
    async with drive.running() as engine:
        passes = drive.passes(engine, count=2)
        running = drive.submit(engine, LONG, max_new_tokens=40)
        await passes.held()
        flushing = asyncio.ensure_future(engine.flush())
        await posted(flushing)
        passes.let_go()
        assert await flushing == SHARED // 32
        await drive.chunks(running)
        # It has filled more blocks since, and they are nobody else's.
        assert await engine.flush() == 0


async def test_requests_frozen_through_an_update_hand_nothing_on(drive: Any) -> None:
    """They go on from what the old weights made; texts that begin later must not."""
    b = drive.checkpoint(2)
    async with drive.running(seed=2) as fresh:
        wanted = await drive.generate(fresh, [LONG], max_new_tokens=12)
    async with drive.running() as engine:
        passes = drive.passes(engine, count=3)
        frozen = drive.submit(engine, LONG, rid="frozen", max_new_tokens=60)
        await passes.held()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.IN_PLACE))
        await posted(pausing)
        passes.let_go()
        await pausing
        await drive.write(engine, b, epoch=1)
        await engine.resume()
        late = drive.submit(engine, LONG, rid="late", max_new_tokens=12)
        late_chunks = await drive.chunks(late)
        assert (late_chunks[0].cached_tokens, drive.tokens(late_chunks)) == (0, wanted[0])
        chunks = await drive.chunks(frozen)
        epochs = [chunk.stamp.epoch for chunk in chunks]
        assert epochs == sorted(epochs)
        assert set(epochs) == {0, 1}
        # Also after it has ended: its blocks went back as nobody's.
        again = await drive.chunks(drive.submit(engine, LONG, rid="again", max_new_tokens=12))
        assert drive.tokens(again) == wanted[0]


async def test_a_relabel_keeps_what_is_cached(drive: Any) -> None:
    async with drive.running() as engine:
        await drive.generate(engine, [LONG], max_new_tokens=2)
        await engine.pause(PauseMode.IN_PLACE)
        await engine.commit(WeightStamp(version="other"))
        await engine.resume()
        chunks = await drive.chunks(drive.submit(engine, LONG, max_new_tokens=2))
        assert (chunks[0].cached_tokens, chunks[0].stamp.version) == (SHARED, "other")


@pytest.mark.parametrize("waiting", [False, True], ids=["running", "waiting"])
async def test_an_abort_ends_the_stream(drive: Any, waiting: bool) -> None:
    async with drive.running(max_running_requests=1) as engine:
        passes = drive.passes(engine, count=2)
        first, second = await drive.submit_together(engine, [[1, 2], [3, 4]], max_new_tokens=9)
        await passes.held()
        aborted, other = (second, first) if waiting else (first, second)
        aborted.abort()
        aborted.abort()
        passes.let_go()
        chunks = await drive.chunks(aborted)
        assert chunks[-1].finish_reason == "abort"
        assert len(drive.tokens(chunks)) == (0 if waiting else 3)
        assert len(drive.tokens(await drive.chunks(other))) == 9
        assert engine.in_flight == InFlightCounts()
        aborted.abort()


async def test_a_client_that_reads_nothing_stops_nobody(drive: Any) -> None:
    async with drive.running(max_unread_chunks=8) as engine:
        slow = drive.submit(engine, [1, 2], rid="slow", max_new_tokens=50)
        with anyio.fail_after(60):
            while not engine.load.stalled:
                await drive.generate(engine, [[5]], max_new_tokens=6)
        assert len(drive.tokens(await drive.chunks(slow))) == 50
        assert engine.in_flight == InFlightCounts()


async def test_an_engine_that_ends_ends_its_requests(drive: Any) -> None:
    async with drive.running(max_running_requests=1) as engine:
        passes = drive.passes(engine, count=1)
        open_ones = await drive.submit_together(engine, [[1], [2]], max_new_tokens=50)
        await passes.held()
        ending = asyncio.ensure_future(asyncio.to_thread(engine.close))
        await posted(ending)
        passes.let_go()
        await ending
        for generation in open_ones:
            assert (await drive.chunks(generation))[-1].finish_reason == "abort"
        with pytest.raises(RuntimeError, match="has ended"):
            drive.submit(engine, [1])
        assert engine.in_flight == InFlightCounts()


async def test_stops_lengths_and_logprobs(drive: Any) -> None:
    async with drive.running() as engine:
        (whole,) = await drive.generate(engine, [LONG], max_new_tokens=12)
        stopped = await drive.chunks(
            drive.submit(engine, LONG, max_new_tokens=12, stop_token_ids=(whole[4],))
        )
        assert drive.tokens(stopped) == whole[: whole.index(whole[4]) + 1]
        assert (stopped[-1].finish_reason, stopped[-1].matched_stop) == ("stop", whole[4])
        (none,) = await drive.chunks(drive.submit(engine, LONG, max_new_tokens=0))
        assert (none.token_id, none.finish_reason) == (None, "length")

        scored = engine.submit(
            GenerateRequest(rid="s", input_ids=LONG, logprobs=LogprobsWanted(top=2))
        )
        first = (await drive.chunks(scored))[0]
        assert first.logprob is not None
        assert first.logprob.token_id == whole[0] == first.logprob.top[0][0]
        assert first.logprob.logprob == pytest.approx(first.logprob.top[0][1])


async def test_more_requests_than_the_cache_holds_end_all_the_same(drive: Any) -> None:
    prompts = [[number, *range(60)] for number in range(6)]
    async with drive.running() as engine:
        whole = await drive.generate(engine, prompts, max_new_tokens=40)
    async with drive.running(max_total_tokens=256) as engine:
        assert await drive.generate(engine, prompts, max_new_tokens=40) == whole
        with pytest.raises(ValueError, match="wanted 1 to 255"):
            drive.submit(engine, range(1, 257))


async def test_weights_that_are_no_numbers_end_requests_with_an_error(drive: Any) -> None:
    async with drive.running() as engine:
        engine.model.lm_head.weight.fill_(float("nan"))
        (chunk,) = await drive.chunks(drive.submit(engine, [1, 2]))
        assert (chunk.token_id, chunk.finish_reason) == (None, "error")
        assert engine.in_flight == InFlightCounts()


async def test_a_pass_that_fails_ends_its_requests_and_the_next_go_on(drive: Any) -> None:
    async with drive.running() as engine:
        (whole,) = await drive.generate(engine, [LONG], max_new_tokens=4)

        def fail(_module: object, _inputs: object) -> None:
            raise RuntimeError("injected")

        hook = engine.model.register_forward_pre_hook(fail)
        (chunk,) = await drive.chunks(drive.submit(engine, LONG))
        assert chunk.finish_reason == "error"
        hook.remove()
        assert await drive.generate(engine, [LONG], max_new_tokens=4) == [whole]


async def test_what_cannot_run_is_refused(drive: Any) -> None:
    async with drive.running(max_running_requests=1, max_queued=1) as engine:
        for ids, sampling, reason in (
            ([], {}, "the prompt has 0 tokens"),
            ([9999], {}, "token id 9999 is outside"),
            ([1], {"temperature": -1.0}, "temperature"),
        ):
            with pytest.raises(ValueError, match=reason):
                drive.submit(engine, ids, **sampling)
        with pytest.raises(ValueError, match="scores output tokens only"):
            engine.submit(
                GenerateRequest(rid="x", input_ids=[1], logprobs=LogprobsWanted(input_start=0))
            )
        await engine.pause(PauseMode.IN_PLACE)
        for number in range(2):
            drive.submit(engine, [1], rid=str(number))
        with pytest.raises(QueueFull):
            drive.submit(engine, [1], rid="one too many")


async def test_without_a_tokenizer_only_token_ids_are_served(drive: Any) -> None:
    directory = drive.checkpoint(1, tokenizer=False)
    async with TransformersEngine.from_directory(
        directory, device="cpu", max_total_tokens=256
    ) as engine:
        assert engine.describe()["has_tokenizer"] is False
        with pytest.raises(ValueError, match=r"no tokenizer\.json; send input_ids"):
            engine.encode("a")
        with pytest.raises(ValueError, match="use stop_token_ids"):
            drive.submit(engine, [1], stop=("a",))
        assert len((await drive.generate(engine, [[1]], max_new_tokens=2))[0]) == 2


async def test_parts_show_themselves_in_a_line(drive: Any) -> None:
    async with drive.running() as engine:
        await drive.generate(engine, [LONG], max_new_tokens=2)
        assert repr(engine._batching) == "<Batching 0 requests 2 cached blocks>"
        assert repr(engine._intake) == "<Intake of <EngineLoop alive>>"
        assert repr(engine._steps) == (
            "<BatchSteps <BatchScheduler 0 running 0 waiting <Gate open>>>"
        )


def test_the_module_brings_the_engine_on_first_use() -> None:
    assert hotswap_transformers.TransformersEngine is TransformersEngine
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = hotswap_transformers.Other
