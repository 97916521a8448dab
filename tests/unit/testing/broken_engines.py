"""Engines with one fault each, and the one test of the suite that has to find it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import torch

from hotswap.engine import EmbeddedEngine
from hotswap.engine.generation import EmbeddedGeneration
from hotswap.seams import EnginePause, GenerateRequest, Plan
from hotswap.testing.module_engine import HeldTensor, ModuleEngine
from hotswap.types import (
    Bucket,
    InFlightCounts,
    Manifest,
    PauseMode,
    Payload,
    Scope,
    WeightStamp,
)
from hotswap.weights.plan import TargetPlan

__all__ = ["BROKEN"]

Kind = type[ModuleEngine] | type[EmbeddedEngine]

BROKEN: dict[str, tuple[Kind, str]] = {}
"""What is wrong -> the engine, and the test that it fails."""


Broken = TypeVar("Broken", bound=Kind)


def broken(what: str, test: str) -> Callable[[Broken], Broken]:
    def note(kind: Broken) -> Broken:
        BROKEN[what] = (kind, test)
        return kind

    return note


# --- weights


@broken("a weight is kept quiet about", "test_the_manifest_names_every_live_weight")
class HidesAWeight(ModuleEngine):
    def manifest(self) -> Manifest:
        return Manifest.of(spec for spec in super().manifest().tensors if spec.name != "mean")

    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        hidden = [spec for spec in super().manifest().tensors if spec.name == "mean"]
        if scope is Scope.FULL:
            made = super().plan(Manifest.of([*manifest.tensors, *hidden]), scope)
            assert isinstance(made, TargetPlan)
            return without(made, "mean")
        made = super().plan(manifest, scope)
        assert isinstance(made, TargetPlan)
        return replace(made, missing=tuple(name for name in made.missing if name != "mean"))


def without(plan: TargetPlan, name: str) -> TargetPlan:
    specs = {key: spec for key, spec in plan.specs.items() if key != name}
    slots = {key: slot for key, slot in plan.slots.items() if key != name}
    return replace(plan, specs=specs, slots=slots)


@broken("a float is told as a double", "test_the_manifest_has_the_live_shapes_and_dtypes")
class TellsAnotherDtype(ModuleEngine):
    def manifest(self) -> Manifest:
        return Manifest.of(
            replace(spec, dtype=torch.float64) if spec.name == "mean" else spec
            for spec in super().manifest().tensors
        )


@broken("it does not want what it has", "test_its_own_manifest_is_a_full_update")
class PlansTooLittle(ModuleEngine):
    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        plan = super().plan(manifest, scope)
        assert isinstance(plan, TargetPlan)
        if scope is not Scope.FULL or "mean" not in plan.specs:
            return plan
        return replace(plan, specs={k: v for k, v in plan.specs.items() if k != "mean"})


class Lenient(ModuleEngine):
    """Looks away where ``forgives`` says so: plans what its own manifest has instead."""

    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        live = super().manifest()
        names = [spec.name for spec in manifest.tensors if spec.name in live]
        if self.forgives(manifest, live):
            scope = Scope.PARTIAL
            manifest = Manifest.of(live[name] for name in names)
        return super().plan(manifest, scope)

    def forgives(self, manifest: Manifest, live: Manifest) -> bool:
        # Never called: each engine below says what it forgives.
        raise NotImplementedError


@broken("unknown names are passed over", "test_an_unknown_name_is_rejected")
class ForgivesUnknown(Lenient):
    def forgives(self, manifest: Manifest, live: Manifest) -> bool:
        return any(name not in live for name in manifest.names)


@broken("a full update may lack something", "test_a_missing_name_is_rejected")
class ForgivesMissing(Lenient):
    def forgives(self, manifest: Manifest, live: Manifest) -> bool:
        known = all(live[spec.name] == spec for spec in manifest.tensors if spec.name in live)
        return known and set(manifest.names) < set(live.names) and len(manifest) > 1


@broken("shapes are not looked at", "test_a_wrong_shape_is_rejected")
class ForgivesShapes(Lenient):
    def forgives(self, manifest: Manifest, live: Manifest) -> bool:
        known = [spec for spec in manifest.tensors if spec.name in live]
        return any(live[spec.name].shape != spec.shape for spec in known)


@broken("dtypes are not looked at", "test_a_wrong_dtype_is_rejected")
class ForgivesDtypes(Lenient):
    def forgives(self, manifest: Manifest, live: Manifest) -> bool:
        known = [spec for spec in manifest.tensors if spec.name in live]
        return any(spec.dtype.is_complex for spec in known)


@broken("what a part lacks is not told", "test_a_part_is_planned_as_a_part")
class TellsNothingMissing(ModuleEngine):
    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        plan = super().plan(manifest, scope)
        assert isinstance(plan, TargetPlan)
        return replace(plan, missing=())


@broken("a plan clears what it is for", "test_planning_writes_nothing")
class PlansByWriting(ModuleEngine):
    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        plan = super().plan(manifest, scope)
        assert isinstance(plan, TargetPlan)
        if scope is Scope.FULL:
            plan.slots["mean"].destination().zero_()
        return plan


@broken("the last of many is left out", "test_a_full_update_is_live_bit_by_bit")
class WritesAllButOne(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        plain = all(is_plain(payload) for _, payload in bucket)
        first_of_many = not self.buckets and len(bucket) > 1
        await super().write(plan, bucket[:-1] if plain and first_of_many else bucket)


def is_plain(payload: Payload) -> bool:
    return isinstance(payload, torch.Tensor) and payload.dtype is not torch.double


@broken("a lone tensor is left out", "test_tensors_may_come_one_by_one_in_any_order")
class WritesNoLoneOne(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        await super().write(plan, bucket if len(bucket) > 1 or len(plan.specs) == 1 else [])


@broken("a second write adds up", "test_writing_twice_is_writing_once")
class AddsUp(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        names = tuple(name for name, _ in bucket)
        again = not self.stamps and names in self.buckets and len(names) == len(self.written)
        await super().write(plan, bucket)
        if again:
            self.target.module.get_buffer("mean").mul_(2)


@broken("what has to be read is passed over", "test_payloads_that_have_to_be_read_are_written")
class ReadsNothing(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        kept = [
            (name, payload)
            for name, payload in bucket
            if not isinstance(payload, HeldTensor) or payload.error is not None
        ]
        await super().write(plan, kept)


@broken("floats are cut and not rounded", "test_other_floats_are_rounded_as_torch_rounds_them")
class CutsFloats(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        await super().write(
            plan,
            [(name, payload if is_plain(payload) else cut(payload)) for name, payload in bucket],
        )


def cut(payload: Payload) -> Payload:
    return payload.bfloat16() if isinstance(payload, torch.Tensor) else payload


@broken("a part clears the rest", "test_a_part_leaves_the_rest_as_it_was")
class ClearsTheRest(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        if len(plan.specs) == 1:
            self.target.module.get_buffer("mean").zero_()
        await super().write(plan, bucket)


@broken("a weight moves to new memory", "test_weights_are_written_in_place")
class MovesAWeight(ModuleEngine):
    async def commit(self, stamp: WeightStamp) -> None:
        await super().commit(stamp)
        self.target.module.register_buffer("mean", self.target.module.get_buffer("mean").clone())


@broken(
    "a tensor that cannot be read is passed over", "test_a_source_that_fails_is_not_passed_over"
)
class PassesOver(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        for item in bucket:
            with suppress(OSError):
                await super().write(plan, [item])


@broken(
    "it writes nothing after a failure", "test_after_a_write_that_failed_everything_can_be_written"
)
class StaysBroken(ModuleEngine):
    failed = False

    async def write(self, plan: Plan, bucket: Bucket) -> None:
        if self.failed:
            return
        self.failed = True
        await super().write(plan, bucket)
        self.failed = False


@broken("a commit opens a file", "test_nothing_is_opened_while_weights_are_written")
class OpensAFile(ModuleEngine):
    async def commit(self, stamp: WeightStamp) -> None:
        os.close(os.open(os.devnull, os.O_RDONLY))
        await super().commit(stamp)


# --- commands


@broken("one pause mode is unknown", "test_every_pause_mode_is_understood")
class KnowsNoWait(ModuleEngine):
    async def pause(self, mode: PauseMode) -> EnginePause:
        if mode is PauseMode.WAIT:
            # The planted fault: the seam has four modes, and this engine knows three.
            raise NotImplementedError(mode)
        return await super().pause(mode)


@broken("a second pause is an error", "test_pausing_and_resuming_twice_is_allowed")
class PausesOnce(ModuleEngine):
    paused = False

    async def pause(self, mode: PauseMode) -> EnginePause:
        if self.paused and not self.written:
            raise RuntimeError("paused already")
        self.paused = True
        return await super().pause(mode)

    async def resume(self) -> None:
        self.paused = False


@broken("a flush counts what is gone", "test_a_second_flush_finds_nothing")
class CountsForEver(ModuleEngine):
    async def flush(self) -> int:
        return 3


@broken("a thread outlives it", "test_leaving_it_leaves_nothing")
class LeavesAThread(ModuleEngine):
    async def flush(self) -> int:
        ended = threading.Event()
        # As long as the suite looks, and then it is over.
        threading.Thread(target=ended.wait, args=(2.0,), name="cleans up").start()
        return 0


# --- requests


@broken("a request writes one token too few", "test_a_request_writes_what_it_asks_for")
class WritesTooFew(EmbeddedEngine):
    def submit(self, request: GenerateRequest) -> EmbeddedGeneration:
        asked = request.sampling.max_new_tokens
        few = asked - 1 if asked == 24 else asked
        sampling = replace(request.sampling, max_new_tokens=few)
        return super().submit(replace(request, sampling=sampling))


@broken("a request that waits is not counted", "test_requests_in_flight_are_counted")
class CountsSome(EmbeddedEngine):
    submitted = 0

    @property
    def in_flight(self) -> InFlightCounts:
        counts = super().in_flight
        return replace(counts, waiting=0) if self.submitted == 2 else counts

    def submit(self, request: GenerateRequest) -> EmbeddedGeneration:
        self.submitted += 1
        return super().submit(request)


@broken("an abort does nothing", "test_an_abort_ends_a_request")
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


@broken("a pause in place stops nothing", "test_no_token_is_written_while_it_is_paused")
class RunsOn(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        if mode is PauseMode.IN_PLACE:
            return EnginePause(num_aborted=0, since=time.perf_counter())
        return await super().otherwise(mode)


@broken("a frozen request is dropped", "test_a_request_frozen_in_place_goes_on_after_the_resume")
class DropsFrozen(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        return await super().otherwise(PauseMode.ABORT if mode is PauseMode.IN_PLACE else mode)


@broken("a parked request is dropped", "test_a_request_that_was_parked_goes_on_after_the_resume")
class DropsParked(PausesOtherwise):
    parked = False

    async def otherwise(self, mode: PauseMode) -> EnginePause:
        self.parked = mode is PauseMode.RETRACT
        return await super().otherwise(mode)

    async def resume(self) -> None:
        if self.parked:
            await EmbeddedEngine.pause(self, PauseMode.ABORT)
        await super().resume()


@broken("a parked request keeps its keys", "test_a_pause_that_retracts_frees_every_key")
class KeepsKeys(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        return await super().otherwise(PauseMode.IN_PLACE if mode is PauseMode.RETRACT else mode)


@broken(
    "aborted requests are not counted", "test_a_pause_that_aborts_ends_requests_and_counts_them"
)
class CountsNoAborts(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        return replace(await super().otherwise(mode), num_aborted=0)


@broken("a pause that waits aborts", "test_a_pause_that_waits_lets_requests_finish")
class DoesNotWait(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        return await super().otherwise(PauseMode.ABORT if mode is PauseMode.WAIT else mode)


@broken("pauses wait for each other", "test_a_stronger_pause_takes_over_one_that_waits")
class PausesInLine(PausesOtherwise):
    line: asyncio.Lock | None = None

    async def otherwise(self, mode: PauseMode) -> EnginePause:
        self.line = self.line or asyncio.Lock()
        async with self.line:
            return await super().otherwise(mode)


@broken("a pause that nobody waits for goes on", "test_a_cancelled_pause_lets_it_run_on")
class PausesInTheEnd(PausesOtherwise):
    async def otherwise(self, mode: PauseMode) -> EnginePause:
        return await asyncio.shield(asyncio.ensure_future(super().otherwise(mode)))


@broken("tokens have the stamp of before", "test_tokens_name_the_weights_that_wrote_them")
class StampsLate(EmbeddedEngine):
    async def commit(self, stamp: WeightStamp) -> None:
        await super().commit(replace(stamp, epoch=stamp.epoch - 1))


@broken("a flush keeps the prefixes", "test_a_flush_forgets_every_prefix")
class FlushesNothing(EmbeddedEngine):
    async def flush(self) -> int:
        return 0


@broken(
    "what a request has left behind goes into the weights",
    "test_after_an_update_it_writes_as_a_fresh_engine_does",
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
