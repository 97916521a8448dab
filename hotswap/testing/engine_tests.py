"""What every engine has to do: subclass :class:`EngineTests` with two fixtures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import ClassVar
from unittest import SkipTest

import anyio

from hotswap.seams import Engine, GenerateRequest, Generation, Generator, SamplingParams, TokenChunk
from hotswap.testing.cancelling import KINDS, cancelled_at
from hotswap.testing.engine_weight_tests import (
    EngineFactory,
    EngineWeightTests,
    LiveWeights,
    weights_for,
)
from hotswap.testing.holdings import Holdings
from hotswap.types import PauseMode, WeightStamp

__all__ = ["EngineFactory", "EngineTests", "LiveWeights"]

_MOST_AWAITS = 200
_QUIET_S = 0.2


class EngineTests(EngineWeightTests, suite=True):
    """Fixtures: ``engine``, an :data:`EngineFactory`, and ``live``, a :data:`LiveWeights`.

    Tests of generation are skipped for an engine that is no ``Generator``. ``prompt`` are
    token ids that it runs, ``few`` and ``many`` numbers of tokens that it may write.
    """

    prompt: ClassVar[tuple[int, ...]] = tuple(range(1, 41))
    few: ClassVar[int] = 24
    many: ClassVar[int] = 400

    # --- commands

    def test_every_pause_mode_is_understood(self, engine: EngineFactory) -> None:
        """Without requests nothing is aborted, and each comes back."""

        async def each() -> None:
            async with engine() as running:
                for mode in PauseMode:
                    pause = await running.pause(mode)
                    assert (pause.num_aborted, type(pause.since)) == (0, float), mode
                    await running.resume()

        self.run(each)

    def test_pausing_and_resuming_twice_is_allowed(self, engine: EngineFactory) -> None:
        """The second time changes nothing."""

        async def twice() -> None:
            async with engine() as running:
                await running.resume()
                for _ in range(2):
                    await running.pause(PauseMode.IN_PLACE)
                for _ in range(2):
                    await running.resume()

        self.run(twice)

    def test_a_second_flush_finds_nothing(self, engine: EngineFactory) -> None:
        """``flush`` says how many prefixes went."""

        async def flush() -> list[int]:
            async with engine() as running:
                return [await running.flush() for _ in range(2)]

        first, second = self.run(flush)
        assert first >= 0
        assert second == 0

    def test_leaving_it_leaves_nothing(self, engine: EngineFactory) -> None:
        """Threads, descriptors, mappings and processes of an engine that was used."""

        async def use() -> Holdings:
            before = Holdings.now()
            async with engine() as running:
                await self._update(running, weights_for(running.manifest(), 1))
                if isinstance(running, Generator):
                    await _finished(running.submit(self._request("a", self.few)))
            return await before.released(within_s=self.settle_s)

        self.run(use)
        assert str(self.run(use)) == "nothing"

    # --- requests

    def test_a_request_writes_what_it_asks_for(self, engine: EngineFactory) -> None:
        """So many tokens, and then its end."""

        async def generate() -> list[TokenChunk]:
            async with self._generating(engine) as (running, _):
                return await _finished(running.submit(self._request("a", self.few)))

        chunks = self.run(generate)
        assert len(_tokens(chunks)) == self.few
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["length"]

    def test_requests_in_flight_are_counted(self, engine: EngineFactory) -> None:
        """From ``submit`` on, and not after their end."""

        async def count() -> tuple[int, int, int]:
            async with self._generating(engine) as (running, counted):
                before = counted.in_flight.total
                generations = [running.submit(self._request(rid, self.few)) for rid in "ab"]
                during = counted.in_flight.total
                for generation in generations:
                    await _finished(generation)
                return before, during, counted.in_flight.total

        assert self.run(count) == (0, 2, 0)

    def test_an_abort_ends_a_request(self, engine: EngineFactory) -> None:
        """With what it has; asking twice is asking once."""

        async def abort() -> tuple[str | None, int]:
            async with self._generating(engine) as (running, counted):
                generation = running.submit(self._request("a", self.many))
                chunks = aiter(generation)
                await anext(chunks)
                generation.abort()
                generation.abort()
                last = [chunk async for chunk in chunks][-1]
                return last.finish_reason, counted.in_flight.total

        assert self.run(abort) == ("abort", 0)

    def test_no_token_is_written_while_it_is_paused(self, engine: EngineFactory) -> None:
        """Once a pause has returned, no forward pass runs."""

        async def paused() -> bool:
            async with self._generating(engine) as (running, counted):
                chunks = aiter(running.submit(self._request("a", self.many)))
                await anext(chunks)
                await counted.pause(PauseMode.IN_PLACE)
                return await _ends(chunks)

        assert not self.run(paused), "a request ran to its end while the engine was paused"

    def test_a_request_frozen_in_place_goes_on_after_the_resume(
        self, engine: EngineFactory
    ) -> None:
        """With every token that it asked for."""
        assert len(_tokens(self._paused_in(engine, PauseMode.IN_PLACE))) == self.many

    def test_a_request_that_was_parked_goes_on_after_the_resume(
        self, engine: EngineFactory
    ) -> None:
        """With every token that it asked for, its keys and values computed again."""
        assert len(_tokens(self._paused_in(engine, PauseMode.RETRACT))) == self.many

    def test_a_pause_that_retracts_frees_every_key(self, engine: EngineFactory) -> None:
        """Requests live on, and hold no KV."""

        async def retract() -> tuple[int, int]:
            async with self._generating(engine) as (running, counted):
                await anext(aiter(running.submit(self._request("a", self.many))))
                await counted.pause(PauseMode.RETRACT)
                return counted.in_flight.total, counted.in_flight.holding_kv

        assert self.run(retract) == (1, 0)

    def test_a_pause_that_aborts_ends_requests_and_counts_them(self, engine: EngineFactory) -> None:
        """Those that run and those that wait."""

        async def abort() -> tuple[int, list[str | None]]:
            async with self._generating(engine) as (running, counted):
                generations = [running.submit(self._request(rid, self.many)) for rid in "abc"]
                await anext(aiter(generations[0]))
                pause = await counted.pause(PauseMode.ABORT)
                ended = [(await _finished(one))[-1].finish_reason for one in generations]
                return pause.num_aborted, ended

        assert self.run(abort) == (3, ["abort"] * 3)

    def test_a_pause_that_waits_lets_requests_finish(self, engine: EngineFactory) -> None:
        """It returns when nothing is in flight any more."""

        async def wait() -> tuple[int, int]:
            async with self._generating(engine) as (running, counted):
                chunks = aiter(running.submit(self._request("a", self.many)))
                found = [await anext(chunks)]
                await counted.pause(PauseMode.WAIT)
                left = counted.in_flight.total
                found += [chunk async for chunk in chunks]
                return left, len(_tokens(found))

        assert self.run(wait) == (0, self.many)

    def test_a_stronger_pause_takes_over_one_that_waits(self, engine: EngineFactory) -> None:
        """Both return, long before the request would have ended."""

        async def overtake() -> str | None:
            async with self._generating(engine) as (running, counted):
                chunks = aiter(running.submit(self._request("a", self.many)))
                await anext(chunks)
                waiting = asyncio.ensure_future(counted.pause(PauseMode.WAIT))
                await anyio.lowlevel.checkpoint()
                await counted.pause(PauseMode.ABORT)
                await asyncio.wait([waiting])
                return [chunk async for chunk in chunks][-1].finish_reason

        assert self.run(overtake) == "abort"

    def test_a_cancelled_pause_lets_it_run_on(self, engine: EngineFactory) -> None:
        """Cancelled at every await, by a scope and by its task, while requests run."""

        async def cancel(kind: str, at: int) -> bool:
            async with self._generating(engine) as (running, counted):
                long = running.submit(self._request("long", 4 * self.few))
                await anext(aiter(long))
                cancelled = await cancelled_at(at, counted.pause(PauseMode.WAIT), kind=kind)
                if cancelled.ended:
                    await _finished(running.submit(self._request("next", 2)))
                long.abort()
                return cancelled.reached

        for kind in KINDS:
            at = 0
            while self.run(cancel, kind, at):
                at += 1
                assert at < _MOST_AWAITS, f"more than {_MOST_AWAITS} awaits"

    # --- weights and requests

    def test_tokens_name_the_weights_that_wrote_them(self, engine: EngineFactory) -> None:
        """The stamp of a commit is on every token after it, and on none before it."""

        async def epochs() -> list[int]:
            async with self._generating(engine) as (running, counted):
                await self._update(counted, weights_for(counted.manifest(), 1), epoch=1)
                first = await _finished(running.submit(self._request("a", 2)))
                await counted.pause(PauseMode.IN_PLACE)
                await counted.commit(WeightStamp(version="2", update_count=2, epoch=2))
                await counted.resume()
                second = await _finished(running.submit(self._request("b", 2)))
                return [chunk.stamp.epoch for chunk in first[:2] + second[:2]]

        assert self.run(epochs) == [1, 1, 2, 2]

    def test_a_flush_forgets_every_prefix(self, engine: EngineFactory) -> None:
        """A prompt that was there before begins without cached tokens."""

        async def flush() -> int:
            async with self._generating(engine) as (running, counted):
                for rid in "ab":
                    await _finished(running.submit(self._request(rid, 2)))
                await counted.flush()
                chunks = await _finished(running.submit(self._request("c", 2)))
                return max(chunk.cached_tokens for chunk in chunks)

        assert self.run(flush) == 0

    def test_after_an_update_it_writes_as_a_fresh_engine_does(self, engine: EngineFactory) -> None:
        """Nothing of the old weights is left in any cache or derived tensor."""

        async def both() -> list[list[int]]:
            async with AsyncExitStack() as engines:
                found = []
                for used in (True, False):
                    running, counted = await engines.enter_async_context(self._generating(engine))
                    if used:
                        await _finished(running.submit(self._request("before", self.few)))
                    await self._update(counted, weights_for(counted.manifest(), 1))
                    after = running.submit(self._request("after", self.few))
                    found.append(_tokens(await _finished(after)))
                return found

        used, fresh = self.run(both)
        assert used == fresh

    # --- how

    @asynccontextmanager
    async def _generating(self, engine: EngineFactory) -> AsyncIterator[tuple[Generator, Engine]]:
        """A running engine, as a generator and as itself. Skips one that is none."""
        async with engine() as running:
            if isinstance(running, Generator):
                yield running, running
                return
        raise SkipTest("this engine generates no text")

    def _request(self, rid: str, tokens: int) -> GenerateRequest:
        sampling = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
        return GenerateRequest(rid=rid, input_ids=self.prompt, sampling=sampling)

    def _paused_in(self, engine: EngineFactory, mode: PauseMode) -> list[TokenChunk]:
        """Every chunk of a request that was paused after its first token, and resumed."""

        async def pause() -> list[TokenChunk]:
            async with self._generating(engine) as (running, counted):
                chunks = aiter(running.submit(self._request("a", self.many)))
                found = [await anext(chunks)]
                await counted.pause(mode)
                await counted.resume()
                return found + [chunk async for chunk in chunks]

        return self.run(pause)


async def _finished(generation: Generation) -> list[TokenChunk]:
    return [chunk async for chunk in generation]


def _tokens(chunks: list[TokenChunk]) -> list[int]:
    return [chunk.token_id for chunk in chunks if chunk.token_id is not None]


async def _ends(chunks: AsyncIterator[TokenChunk]) -> bool:
    """Read what is there until nothing comes for a moment; whether that was all of it."""
    while True:
        waiting = asyncio.ensure_future(anext(chunks))
        await asyncio.wait([waiting], timeout=_QUIET_S)
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])
            return False
        reason = waiting.result().finish_reason
        if reason is not None:
            return reason != "abort"
