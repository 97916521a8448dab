"""Engines that do something wrong with requests, each in one way."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import torch

from hotswap.engine import EmbeddedEngine
from hotswap.engine.generation import EmbeddedGeneration
from hotswap.seams import EnginePause, GenerateRequest
from hotswap.types import InFlightCounts, PauseMode, WeightStamp
from tests.unit.testing.planted_engines import broken

__all__: list[str] = []


@broken(
    "a request writes one token too few",
    "test_a_request_writes_what_it_asks_for",
    says=r"for 24 tokens .* wrote 23",
)
class WritesTooFew(EmbeddedEngine):
    def submit(self, request: GenerateRequest) -> EmbeddedGeneration:
        asked = request.sampling.max_new_tokens
        few = asked - 1 if asked == 24 else asked
        sampling = replace(request.sampling, max_new_tokens=few)
        return super().submit(replace(request, sampling=sampling))


@broken(
    "a request that waits is not counted",
    "test_requests_in_flight_are_counted",
    says=r"with two requests",
)
class CountsSome(EmbeddedEngine):
    submitted = 0

    @property
    def in_flight(self) -> InFlightCounts:
        counts = super().in_flight
        return replace(counts, waiting=0) if self.submitted == 2 else counts

    def submit(self, request: GenerateRequest) -> EmbeddedGeneration:
        self.submitted += 1
        return super().submit(request)


@broken("an abort does nothing", "test_an_abort_ends_a_request", says=r"ended with 'length'")
class AbortsNothing(EmbeddedEngine):
    def submit(self, request: GenerateRequest) -> EmbeddedGeneration:
        generation = super().submit(request)
        if request.rid == "a":
            setattr(generation, "abort", lambda: None)  # noqa: B010
        return generation


class PausesOtherwise(EmbeddedEngine):
    """A pause beside requests that does something else."""

    async def pause(self, mode: PauseMode) -> EnginePause:
        if self.in_flight.total:
            return await self.otherwise(mode)
        return await super().pause(mode)

    async def otherwise(self, mode: PauseMode) -> EnginePause:
        return await EmbeddedEngine.pause(self, mode)


@broken(
    "a pause in place stops nothing",
    "test_no_token_is_written_while_it_is_paused",
    says=r"ran to its end after pause\(in_place\)",
)
class RunsOn(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        if mode is PauseMode.IN_PLACE:
            return EnginePause(num_aborted=0, since=time.perf_counter())
        return await super().otherwise(mode)


@broken(
    "a frozen request is dropped",
    "test_a_request_frozen_in_place_goes_on_after_the_resume",
    says=r"paused \(in_place\) and resumed wrote \d+ of 400",
)
class DropsFrozen(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        return await super().otherwise(PauseMode.ABORT if mode is PauseMode.IN_PLACE else mode)


@broken(
    "a parked request is dropped",
    "test_a_request_that_was_parked_goes_on_after_the_resume",
    says=r"paused \(retract\) and resumed wrote \d+ of 400",
)
class DropsParked(PausesOtherwise):
    parked = False

    async def otherwise(self, mode: PauseMode) -> EnginePause:
        self.parked = mode is PauseMode.RETRACT
        return await super().otherwise(mode)

    async def resume(self) -> None:
        if self.parked:
            await EmbeddedEngine.pause(self, PauseMode.ABORT)
        await super().resume()


@broken(
    "a parked request keeps its keys",
    "test_a_pause_that_retracts_frees_every_key",
    says=r"after pause\(retract\) with one request .*holding_kv=1",
)
class KeepsKeys(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        return await super().otherwise(PauseMode.IN_PLACE if mode is PauseMode.RETRACT else mode)


@broken(
    "aborted requests are not counted",
    "test_a_pause_that_aborts_ends_requests_and_counts_them",
    says=r"with three requests counted 0",
)
class CountsNoAborts(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        return replace(await super().otherwise(mode), num_aborted=0)


@broken(
    "a pause that waits aborts",
    "test_a_pause_that_waits_lets_requests_finish",
    says=r"the request had \d+ of its 400",
)
class DoesNotWait(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        return await super().otherwise(PauseMode.ABORT if mode is PauseMode.WAIT else mode)


@broken(
    "pauses wait for each other",
    "test_a_stronger_pause_takes_over_one_that_waits",
    says=r"with 'length'|did not return",
)
class PausesInLine(PausesOtherwise):
    line: asyncio.Lock | None = None

    async def otherwise(self, mode: PauseMode) -> EnginePause:
        self.line = self.line or asyncio.Lock()
        async with self.line:
            return await super().otherwise(mode)


@broken(
    "a pause that nobody waits for goes on",
    "test_a_cancelled_pause_lets_it_run_on",
    says=r"cancelled \(by its \w+\) at await \d+",
)
class PausesInTheEnd(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        return await asyncio.shield(asyncio.ensure_future(super().otherwise(mode)))


@broken(
    "a pause that was given up returns",
    "test_a_cancellation_of_a_pause_is_not_swallowed",
    says=r"cancelled at its first await, in \w+ \(\w+\.py:\d+\), and returned",
)
class SwallowsCancellation(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        try:
            return await super().otherwise(mode)
        except BaseException as error:
            if isinstance(error, Exception):
                raise
            return EnginePause(num_aborted=0, since=time.perf_counter())


@broken(
    "tokens have the stamp of before",
    "test_tokens_name_the_weights_that_wrote_them",
    says=r"stamped \[0, 0, 1, 1\]",
)
class StampsLate(EmbeddedEngine):
    async def commit(self, stamp: WeightStamp) -> None:
        await super().commit(replace(stamp, epoch=stamp.epoch - 1))


@broken(
    "a flush keeps the prefixes",
    "test_a_flush_forgets_every_prefix",
    says=r"began with \d+ cached tokens",
)
class FlushesNothing(EmbeddedEngine):
    async def flush(self) -> int:
        return 0


@broken(
    "what a request has left behind goes into the weights",
    "test_after_an_update_it_writes_as_a_fresh_engine_does",
    says=r"they differ from token \d+ on",
)
class RemembersRequests(EmbeddedEngine):
    has_run = False

    def submit(self, request: GenerateRequest) -> EmbeddedGeneration:
        self.has_run = True
        return super().submit(request)

    async def commit(self, stamp: WeightStamp) -> None:
        await super().commit(stamp)
        if self.has_run:
            with torch.no_grad():
                weight = self.model.lm_head.weight
                weight.copy_(weight.roll(1, 0))
