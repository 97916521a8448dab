"""Engines that do something wrong with weights, each in one way."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import replace

import torch

from hotswap.seams import EnginePause, Plan
from hotswap.testing.module_engine import HeldTensor, ModuleEngine
from hotswap.types import Bucket, Manifest, PauseMode, Payload, Scope, WeightStamp
from hotswap.weights.plan import TargetPlan
from tests.unit.testing.planted_engines import broken

__all__: list[str] = []


@broken(
    "a weight is kept quiet about",
    "test_the_manifest_names_every_live_weight",
    says=r"manifest lacks mean, which is live",
)
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


@broken(
    "a float is told as a double",
    "test_the_manifest_has_the_live_shapes_and_dtypes",
    says=r"mean .*float64, wanted mean .*float32",
)
class TellsAnotherDtype(ModuleEngine):
    def manifest(self) -> Manifest:
        return Manifest.of(
            replace(spec, dtype=torch.float64) if spec.name == "mean" else spec
            for spec in super().manifest().tensors
        )


@broken(
    "it does not want what it has",
    "test_its_own_manifest_is_a_full_update",
    says=r"mean has no place",
)
class PlansTooLittle(ModuleEngine):
    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        plan = super().plan(manifest, scope)
        assert isinstance(plan, TargetPlan)
        if scope is not Scope.FULL or "mean" not in plan.specs:
            return plan
        return replace(plan, specs={k: v for k, v in plan.specs.items() if k != "mean"})


class Lenient(ModuleEngine, ABC):
    """Looks away where ``forgives`` says so: plans what its own manifest has instead."""

    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        live = super().manifest()
        names = [spec.name for spec in manifest.tensors if spec.name in live]
        if self.forgives(manifest, live):
            scope = Scope.PARTIAL
            manifest = Manifest.of(live[name] for name in names)
        return super().plan(manifest, scope)

    @abstractmethod
    def forgives(self, manifest: Manifest, live: Manifest) -> bool: ...


@broken(
    "unknown names are passed over",
    "test_an_unknown_name_is_rejected",
    says=r"with hotswap\.stranger \[2\] float32 was planned",
)
class ForgivesUnknown(Lenient):
    def forgives(self, manifest: Manifest, live: Manifest) -> bool:
        return any(name not in live for name in manifest.names)


@broken(
    "a full update may lack something",
    "test_a_missing_name_is_rejected",
    says=r"full update without the first name was planned",
)
class ForgivesMissing(Lenient):
    def forgives(self, manifest: Manifest, live: Manifest) -> bool:
        known = all(live[spec.name] == spec for spec in manifest.tensors if spec.name in live)
        return known and set(manifest.names) < set(live.names) and len(manifest) > 1


@broken(
    "shapes are not looked at",
    "test_a_wrong_shape_is_rejected",
    says=r"one dimension more in the first tensor was planned",
)
class ForgivesShapes(Lenient):
    def forgives(self, manifest: Manifest, live: Manifest) -> bool:
        known = [spec for spec in manifest.tensors if spec.name in live]
        return any(live[spec.name].shape != spec.shape for spec in known)


@broken(
    "dtypes are not looked at",
    "test_a_wrong_dtype_is_rejected",
    says=r"complex numbers in the first tensor was planned",
)
class ForgivesDtypes(Lenient):
    def forgives(self, manifest: Manifest, live: Manifest) -> bool:
        known = [spec for spec in manifest.tensors if spec.name in live]
        return any(spec.dtype.is_complex for spec in known)


@broken(
    "what a part lacks is not told", "test_a_part_is_planned_as_a_part", says=r"part .* is not told"
)
class TellsNothingMissing(ModuleEngine):
    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        plan = super().plan(manifest, scope)
        assert isinstance(plan, TargetPlan)
        return replace(plan, missing=())


@broken(
    "a plan clears what it is for",
    "test_planning_writes_nothing",
    says=r"plan\(\) has changed live weights: mean",
)
class PlansByWriting(ModuleEngine):
    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        plan = super().plan(manifest, scope)
        assert isinstance(plan, TargetPlan)
        if scope is Scope.FULL:
            plan.slots["mean"].destination().zero_()
        return plan


@broken(
    "the last of many is left out",
    "test_a_full_update_is_live_bit_by_bit",
    says=r"in one bucket, this is live: \S+ \[.* at byte 0 of",
)
class WritesAllButOne(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        plain = all(is_plain(payload) for _, payload in bucket)
        first_of_many = not self.buckets and len(bucket) > 1
        await super().write(plan, bucket[:-1] if plain and first_of_many else bucket)


def is_plain(payload: Payload) -> bool:
    return isinstance(payload, torch.Tensor) and payload.dtype is not torch.double


@broken(
    "a lone tensor is left out",
    "test_tensors_may_come_one_by_one_in_any_order",
    says=r"one a bucket, .* this is live",
)
class WritesNoLoneOne(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        await super().write(plan, bucket if len(bucket) > 1 or len(plan.specs) == 1 else [])


@broken(
    "a second write adds up",
    "test_writing_twice_is_writing_once",
    says=r"written twice, this is live: mean",
)
class AddsUp(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        names = tuple(name for name, _ in bucket)
        again = not self.stamps and names in self.buckets and len(names) == len(self.written)
        await super().write(plan, bucket)
        if again:
            self.target.module.get_buffer("mean").mul_(2)


@broken(
    "what has to be read is passed over",
    "test_payloads_that_have_to_be_read_are_written",
    says=r"as objects with read_into\(\), this is live",
)
class ReadsNothing(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        kept = [
            (name, payload)
            for name, payload in bucket
            if not isinstance(payload, HeldTensor) or payload.error is not None
        ]
        await super().write(plan, kept)


@broken(
    "floats are cut and not rounded",
    "test_other_floats_are_rounded_as_torch_rounds_them",
    says=r"written as float64 this became live",
)
class CutsFloats(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        await super().write(
            plan,
            [(name, payload if is_plain(payload) else cut(payload)) for name, payload in bucket],
        )


def cut(payload: Payload) -> Payload:
    return payload.bfloat16() if isinstance(payload, torch.Tensor) else payload


@broken(
    "a part clears the rest",
    "test_a_part_leaves_the_rest_as_it_was",
    says=r"first tensor alone: mean",
)
class ClearsTheRest(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        if len(plan.specs) == 1:
            self.target.module.get_buffer("mean").zero_()
        await super().write(plan, bucket)


@broken(
    "a weight moves to new memory",
    "test_weights_are_written_in_place",
    says=r"at another address: mean",
)
class MovesAWeight(ModuleEngine):
    async def commit(self, stamp: WeightStamp) -> None:
        await super().commit(stamp)
        self.target.module.register_buffer("mean", self.target.module.get_buffer("mean").clone())


@broken(
    "a tensor that cannot be read is passed over",
    "test_a_source_that_fails_is_not_passed_over",
    says=r"tensor \S+ could not be read \(OSError\), and write",
)
class PassesOver(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        for item in bucket:
            with suppress(OSError):
                await super().write(plan, [item])


@broken(
    "it writes nothing after a failure",
    "test_after_a_write_that_failed_everything_can_be_written",
    says=r"after a write that failed a full update left this live",
)
class StaysBroken(ModuleEngine):
    failed = False

    async def write(self, plan: Plan, bucket: Bucket) -> None:
        if self.failed:
            return
        self.failed = True
        await super().write(plan, bucket)
        self.failed = False


@broken(
    "a commit opens a file",
    "test_nothing_is_opened_while_weights_are_written",
    says=r"an update opened open '/dev/null'",
)
class OpensAFile(ModuleEngine):
    async def commit(self, stamp: WeightStamp) -> None:
        os.close(os.open(os.devnull, os.O_RDONLY))
        await super().commit(stamp)


@broken(
    "an empty bucket is an error",
    "test_an_empty_bucket_is_none",
    says="between two empty buckets, raised IndexError",
)
class WantsAFirst(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        assert bucket[0]
        await super().write(plan, bucket)


@broken(
    "what a bucket brought is kept",
    "test_an_update_keeps_no_memory",
    says=r"left \d+ tensors more in memory: .*float32 \[",
)
class KeepsBuckets(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        await super().write(plan, bucket)
        self.kept = [*getattr(self, "kept", []), *(payload for _, payload in bucket)]


@broken(
    "a write opens a socket",
    "test_nothing_is_opened_while_weights_are_written",
    says=r"an update opened socket\.__new__",
)
class OpensASocket(ModuleEngine):
    async def write(self, plan: Plan, bucket: Bucket) -> None:
        socket.socket().close()
        await super().write(plan, bucket)


# --- commands


@broken(
    "one pause mode is unknown",
    "test_every_pause_mode_is_understood",
    says=r"pause\(wait\) and resume\(\) without requests raised KeyError",
)
class KnowsNoWait(ModuleEngine):
    async def pause(self, mode: PauseMode) -> EnginePause:
        if mode is PauseMode.WAIT:
            # The planted fault: the seam has four modes, and this engine knows three.
            raise KeyError(mode)
        return await super().pause(mode)


@broken(
    "a second pause is an error",
    "test_pausing_and_resuming_twice_is_allowed",
    says=r"raised RuntimeError: paused already",
)
class PausesOnce(ModuleEngine):
    paused = False

    async def pause(self, mode: PauseMode) -> EnginePause:
        if self.paused and not self.written:
            raise RuntimeError("paused already")
        self.paused = True
        return await super().pause(mode)

    async def resume(self) -> None:
        self.paused = False


@broken("a flush counts what is gone", "test_a_second_flush_finds_nothing", says=r"told 3 and 3")
class CountsForEver(ModuleEngine):
    async def flush(self) -> int:
        return 3


@broken("a task outlives it", "test_leaving_it_leaves_nothing", says=r"still held: task Task-\d+")
class LeavesATask(ModuleEngine):
    async def resume(self) -> None:
        self.left = asyncio.get_running_loop().create_task(asyncio.sleep(3600.0))


@broken(
    "a thread outlives it", "test_leaving_it_leaves_nothing", says=r"still held: thread cleans up"
)
class LeavesAThread(ModuleEngine):
    async def flush(self) -> int:
        ended = threading.Event()
        # As long as the suite looks, and then it is over.
        threading.Thread(target=ended.wait, args=(2.0,), name="cleans up").start()
        return 0
