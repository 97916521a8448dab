"""What an engine does with requests: the third part of its suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar
from unittest import SkipTest

import anyio

from hotswap.seams import Engine, GenerateRequest, Generation, Generator, SamplingParams, TokenChunk
from hotswap.testing.cancelling import KINDS, cancelled_at
from hotswap.testing.engine_weight_tests import EngineWeightTests
from hotswap.testing.findings import check
from hotswap.testing.given import EngineFactory
from hotswap.testing.suites import NeverEnded
from hotswap.types import InFlightCounts, PauseMode

__all__ = ["EngineRequestTests", "finished", "tokens_of"]

_MOST_AWAITS = 200
_QUIET_S = 0.2


class EngineRequestTests(EngineWeightTests, suite=True):
    """Fixtures and settings are those of ``EngineTests``."""

    prompt: ClassVar[tuple[int, ...]] = tuple(range(1, 41))
    few: ClassVar[int] = 24
    many: ClassVar[int] = 400

    def test_a_request_writes_what_it_asks_for(self, engine: EngineFactory) -> None:
        """So many tokens, and then its end."""

        async def generate() -> list[TokenChunk]:
            async with self._generating(engine) as (running, _):
                return await finished(running.submit(self._request("a", self.few)))

        chunks = self.run(generate)
        reasons = [chunk.finish_reason for chunk in chunks if chunk.finish_reason]
        check(
            len(tokens_of(chunks)) == self.few and reasons == ["length"],
            f"a request for {self.few} tokens that no token ends wrote {len(tokens_of(chunks))}, "
            f"with the finish reasons {reasons}",
            todo="write max_new_tokens tokens, and give the last chunk the reason 'length'",
        )

    def test_requests_in_flight_are_counted(self, engine: EngineFactory) -> None:
        """From ``submit`` on, and not after their end."""

        async def count() -> tuple[InFlightCounts, InFlightCounts, InFlightCounts]:
            async with self._generating(engine) as (running, counted):
                before = counted.in_flight
                generations = [running.submit(self._request(rid, self.few)) for rid in "ab"]
                during = counted.in_flight
                for generation in generations:
                    await finished(generation)
                return before, during, counted.in_flight

        before, during, after = self.run(count)
        check(
            (before.total, during.total, after.total) == (0, 2, 0),
            f"in_flight was {before} before, {during} with two requests, {after} after their end",
            todo="count from submit() on, as running or as waiting, until the last chunk was made",
        )

    def test_an_abort_ends_a_request(self, engine: EngineFactory) -> None:
        """With what it has; asking twice is asking once."""

        async def abort() -> tuple[str | None, InFlightCounts]:
            async with self._generating(engine) as (running, counted):
                generation = running.submit(self._request("a", self.many))
                chunks = aiter(generation)
                await anext(chunks)
                generation.abort()
                generation.abort()
                last = [chunk async for chunk in chunks][-1]
                return last.finish_reason, counted.in_flight

        reason, left = self.run(abort)
        check(
            reason == "abort" and left.total == 0,
            f"a request that was aborted after its first token ended with {reason!r}, and "
            f"in_flight is {left}",
            todo="end it before its next token, with the finish reason 'abort'",
        )

    # --- pauses beside requests

    def test_no_token_is_written_while_it_is_paused(self, engine: EngineFactory) -> None:
        """Once a pause has returned, no forward pass runs."""

        async def paused() -> bool:
            async with self._generating(engine) as (running, counted):
                chunks = aiter(running.submit(self._request("a", self.many)))
                await anext(chunks)
                await counted.pause(PauseMode.IN_PLACE)
                return await _ends(chunks)

        check(
            not self.run(paused),
            "a request ran to its end after pause(in_place) had returned",
            todo="return from pause() once no forward pass runs, and begin none before the resume",
        )

    def test_a_request_frozen_in_place_goes_on_after_the_resume(
        self, engine: EngineFactory
    ) -> None:
        """With every token that it asked for."""
        self._check_goes_on(engine, PauseMode.IN_PLACE)

    def test_a_request_that_was_parked_goes_on_after_the_resume(
        self, engine: EngineFactory
    ) -> None:
        """With every token that it asked for, its keys and values computed again."""
        self._check_goes_on(engine, PauseMode.RETRACT)

    def test_a_pause_that_retracts_frees_every_key(self, engine: EngineFactory) -> None:
        """Requests live on, and hold no KV."""

        async def retract() -> InFlightCounts:
            async with self._generating(engine) as (running, counted):
                await anext(aiter(running.submit(self._request("a", self.many))))
                await counted.pause(PauseMode.RETRACT)
                return counted.in_flight

        left = self.run(retract)
        check(
            (left.total, left.holding_kv) == (1, 0),
            f"after pause(retract) with one request in_flight is {left}",
            todo="park the request: still counted, and without keys and values",
        )

    def test_a_pause_that_aborts_ends_requests_and_counts_them(self, engine: EngineFactory) -> None:
        """Those that run and those that wait."""

        async def abort() -> tuple[int, list[str | None]]:
            async with self._generating(engine) as (running, counted):
                generations = [running.submit(self._request(rid, self.many)) for rid in "abc"]
                await anext(aiter(generations[0]))
                pause = await counted.pause(PauseMode.ABORT)
                ended = [(await finished(one))[-1].finish_reason for one in generations]
                return pause.num_aborted, ended

        count, ended = self.run(abort)
        check(
            (count, ended) == (3, ["abort"] * 3),
            f"pause(abort) with three requests counted {count}, and they ended with {ended}",
            todo="end every request with the finish reason 'abort', those that wait too, and "
            "return their number as num_aborted",
        )

    def test_a_pause_that_waits_lets_requests_finish(self, engine: EngineFactory) -> None:
        """It returns when nothing is in flight any more."""

        async def wait() -> tuple[InFlightCounts, int]:
            async with self._generating(engine) as (running, counted):
                chunks = aiter(running.submit(self._request("a", self.many)))
                found = [await anext(chunks)]
                await counted.pause(PauseMode.WAIT)
                left = counted.in_flight
                found += [chunk async for chunk in chunks]
                return left, len(tokens_of(found))

        left, count = self.run(wait)
        check(
            (left.total, count) == (0, self.many),
            f"pause(wait) returned with {left}, and the request had {count} of its {self.many} "
            "tokens in the end",
            todo="return from pause(wait) once every request has written all of its tokens",
        )

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

        todo = "let a stronger pause end the draining of the weaker one, which returns then too"
        try:
            reason = self.run(overtake)
        except NeverEnded as error:
            raise AssertionError(
                f"pause(abort) beside a pause(wait) did not return, or that one did not: {error}; "
                f"{todo}"
            ) from error
        check(
            reason == "abort",
            f"beside a pause(wait) pause(abort) let the request end with {reason!r}",
            todo=todo,
        )

    def test_a_cancelled_pause_lets_it_run_on(self, engine: EngineFactory) -> None:
        """Cancelled at every await, by a scope and by its task, while requests run."""

        async def cancel(kind: str, at: int) -> bool:
            place = "its beginning"
            try:
                async with self._generating(engine) as (running, counted):
                    long = running.submit(self._request("long", 4 * self.few))
                    await anext(aiter(long))
                    cancelled = await cancelled_at(at, counted.pause(PauseMode.WAIT), kind=kind)
                    place = cancelled.place
                    if cancelled.ended:
                        with anyio.fail_after(self.limit_s / 2):
                            await finished(running.submit(self._request("next", 2)))
                    long.abort()
                    return cancelled.reached
            except TimeoutError as error:
                raise AssertionError(
                    f"pause(wait) was cancelled (by its {kind}) at await {at}, in {place}, and the "
                    "next request did not run; let a cancelled pause leave the engine running"
                ) from error

        for kind in KINDS:
            at = 0
            while self.run(cancel, kind, at):
                at += 1
                check(
                    at < _MOST_AWAITS,
                    f"one pause gives way more than {_MOST_AWAITS} times",
                    todo="wait for an event, and do not ask again and again",
                )

    def test_a_cancellation_of_a_pause_is_not_swallowed(self, engine: EngineFactory) -> None:
        """Who has given a pause up must not be told that the engine is paused."""

        async def cancel() -> str:
            async with self._generating(engine) as (running, counted):
                long = running.submit(self._request("long", self.many))
                await anext(aiter(long))
                cancelled = await cancelled_at(0, counted.pause(PauseMode.WAIT), kind="task")
                await counted.resume()
                long.abort()
                return "" if cancelled.ended or not cancelled.reached else cancelled.place

        place = self.run(cancel)
        check(
            not place,
            f"pause(wait) was cancelled at its first await, in {place}, and returned",
            todo="let a cancellation pass once the engine runs on: raise it again",
        )

    # --- how

    @asynccontextmanager
    async def _generating(self, engine: EngineFactory) -> AsyncIterator[tuple[Generator, Engine]]:
        """A running engine, as a generator and as itself. Skips one that is none."""
        async with self._engine(engine) as running:
            if isinstance(running, Generator):
                yield running, running
                return
        raise SkipTest("this engine generates no text")

    def _request(self, rid: str, tokens: int) -> GenerateRequest:
        sampling = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
        return GenerateRequest(rid=rid, input_ids=self.prompt, sampling=sampling)

    def _check_goes_on(self, engine: EngineFactory, mode: PauseMode) -> None:
        """With a request that is paused after its first token, and resumed."""

        async def pause() -> list[TokenChunk]:
            async with self._generating(engine) as (running, counted):
                chunks = aiter(running.submit(self._request("a", self.many)))
                found = [await anext(chunks)]
                await counted.pause(mode)
                await counted.resume()
                return found + [chunk async for chunk in chunks]

        found = self.run(pause)
        check(
            len(tokens_of(found)) == self.many,
            f"a request that was paused ({mode}) and resumed wrote {len(tokens_of(found))} of "
            f"{self.many} tokens, and ended with {found[-1].finish_reason!r}",
            todo="let it go on after the resume from where it was",
        )


async def finished(generation: Generation) -> list[TokenChunk]:
    """Every chunk of a request, to its end."""
    return [chunk async for chunk in generation]


def tokens_of(chunks: list[TokenChunk]) -> list[int]:
    """The tokens that chunks carry."""
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
