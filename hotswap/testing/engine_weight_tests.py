"""What an engine does with weights: one half of its suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, TypeAlias
from unittest import SkipTest

import torch

from hotswap.errors import UpdateRejected
from hotswap.seams import Engine
from hotswap.testing.auditing import watching
from hotswap.testing.delivered import dense, differences
from hotswap.testing.module_engine import HeldTensor
from hotswap.testing.suites import Suite
from hotswap.types import Bucket, Manifest, PauseMode, Scope, TensorSpec, WeightStamp

__all__ = ["EngineFactory", "EngineWeightTests", "LiveWeights", "weights_for"]

EngineFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[Engine]]
"""Makes an engine that runs while the context is open; each time another, with equal weights."""

LiveWeights: TypeAlias = Callable[[Any], Mapping[str, torch.Tensor]]
"""The live memory of an engine by checkpoint names: views of it, and no copies."""


def weights_for(manifest: Manifest, seed: int) -> dict[str, torch.Tensor]:
    """A whole checkpoint of random values that fits ``manifest``."""
    draw = torch.Generator().manual_seed(seed)
    return {spec.name: _random(spec, draw) for spec in manifest.tensors}


def _random(spec: TensorSpec, draw: torch.Generator) -> torch.Tensor:
    if spec.dtype.is_floating_point:
        return (0.1 * torch.randn(spec.shape, generator=draw)).to(spec.dtype)
    return torch.randint(0, 2, spec.shape, generator=draw).to(spec.dtype)


class EngineWeightTests(Suite, suite=True):
    """Fixtures and settings are those of ``EngineTests``."""

    def test_the_manifest_names_every_live_weight(
        self, engine: EngineFactory, live: LiveWeights
    ) -> None:
        """Neither more nor less than a full update has to bring."""

        async def names() -> tuple[list[str], list[str]]:
            async with engine() as running:
                return sorted(running.manifest().names), sorted(live(running))

        promised, there = self.run(names)
        assert promised == there

    def test_the_manifest_has_the_live_shapes_and_dtypes(
        self, engine: EngineFactory, live: LiveWeights
    ) -> None:
        """Staging holds what they say."""

        async def compare() -> None:
            async with engine() as running:
                weights = live(running)
                for spec in running.manifest().tensors:
                    if spec.name in weights:
                        tensor = weights[spec.name]
                        assert (spec.dtype, spec.shape) == (tensor.dtype, tuple(tensor.shape))

        self.run(compare)

    def test_its_own_manifest_is_a_full_update(self, engine: EngineFactory) -> None:
        """Nothing missing, nothing unknown, a place for every name."""

        async def planned() -> None:
            async with engine() as running:
                manifest = running.manifest()
                plan = running.plan(manifest, Scope.FULL)
                assert sorted(plan.specs) == sorted(manifest.names)
                assert (tuple(plan.missing), tuple(plan.unknown)) == ((), ())

        self.run(planned)

    def test_an_unknown_name_is_rejected(self, engine: EngineFactory) -> None:
        """A name that no live weight has, in either scope."""
        stranger = TensorSpec(name="hotswap.stranger", dtype=torch.float32, shape=(2,))
        for scope in Scope:
            self._rejected(engine, lambda specs: [*specs, stranger], scope=scope)

    def test_a_missing_name_is_rejected(self, engine: EngineFactory) -> None:
        """A full update brings everything."""
        self._rejected(engine, lambda specs: specs[1:], scope=Scope.FULL)

    def test_a_wrong_shape_is_rejected(self, engine: EngineFactory) -> None:
        """One more row, in either scope."""
        for scope in Scope:
            self._rejected(
                engine,
                lambda specs: [replace(specs[0], shape=(7, *specs[0].shape)), *specs[1:]],
                scope=scope,
            )

    def test_a_wrong_dtype_is_rejected(self, engine: EngineFactory) -> None:
        """Complex numbers where the model has none."""
        for scope in Scope:
            self._rejected(
                engine,
                lambda specs: [replace(specs[0], dtype=torch.complex64), *specs[1:]],
                scope=scope,
            )

    def test_a_part_is_planned_as_a_part(self, engine: EngineFactory) -> None:
        """One name is planned, and all others are told as missing."""

        async def planned() -> None:
            async with engine() as running:
                first, *others = running.manifest().tensors
                plan = running.plan(Manifest.of([first]), Scope.PARTIAL)
                assert list(plan.specs) == [first.name]
                assert sorted(plan.missing) == sorted(spec.name for spec in others)

        self.run(planned)

    def test_planning_writes_nothing(self, engine: EngineFactory, live: LiveWeights) -> None:
        """Requests are served meanwhile."""

        async def planned() -> list[str]:
            async with engine() as running:
                before = _copies(live(running))
                running.plan(running.manifest(), Scope.FULL)
                return differences(live(running), before)

        assert self.run(planned) == []

    def test_a_full_update_is_live_bit_by_bit(
        self, engine: EngineFactory, live: LiveWeights
    ) -> None:
        """Everything in one bucket."""
        assert self._different_after(engine, live, lambda bucket: [bucket]) == []

    def test_tensors_may_come_one_by_one_in_any_order(
        self, engine: EngineFactory, live: LiveWeights
    ) -> None:
        """A bucket for each, from the last to the first."""
        assert self._different_after(engine, live, _one_each) == []

    def test_writing_twice_is_writing_once(self, engine: EngineFactory, live: LiveWeights) -> None:
        """A commit that failed is rolled forward by writing everything again."""
        assert self._different_after(engine, live, lambda bucket: [bucket, bucket]) == []

    def test_payloads_that_have_to_be_read_are_written(
        self, engine: EngineFactory, live: LiveWeights
    ) -> None:
        """A direct update brings tensors that still lie in their files."""
        assert self._different_after(engine, live, _readable) == []

    def test_other_floats_are_rounded_as_torch_rounds_them(
        self, engine: EngineFactory, live: LiveWeights
    ) -> None:
        """For engines that take other dtypes than the live ones: trainers keep float32."""

        async def cast() -> list[str] | None:
            async with engine() as running:
                wanted = weights_for(running.manifest(), 3)
                doubled = {
                    name: tensor.double() + 1e-9 if tensor.is_floating_point() else tensor
                    for name, tensor in wanted.items()
                }
                rounded = {name: doubled[name].to(wanted[name].dtype) for name in wanted}
                try:
                    await self._update(running, doubled)
                except UpdateRejected:
                    return None
                return differences(live(running), rounded)

        different = self.run(cast)
        if different is None:
            raise SkipTest("this engine takes no other dtypes than the live ones")
        assert different == []

    def test_a_part_leaves_the_rest_as_it_was(
        self, engine: EngineFactory, live: LiveWeights
    ) -> None:
        """And the part is live."""

        async def partly() -> list[str]:
            async with engine() as running:
                weights = weights_for(running.manifest(), 4)
                name = next(iter(weights))
                before = _copies(live(running))
                await self._update(running, {name: weights[name]}, scope=Scope.PARTIAL)
                return differences(live(running), before | {name: weights[name]})

        assert self.run(partly) == []

    def test_weights_are_written_in_place(self, engine: EngineFactory, live: LiveWeights) -> None:
        """Addresses stay: tied storages and captured graphs point to them."""

        async def addresses() -> tuple[dict[str, int], dict[str, int]]:
            async with engine() as running:
                before = {name: tensor.data_ptr() for name, tensor in live(running).items()}
                await self._update(running, weights_for(running.manifest(), 5))
                return before, {name: one.data_ptr() for name, one in live(running).items()}

        before, after = self.run(addresses)
        assert after == before

    def test_a_source_that_fails_is_not_passed_over(
        self, engine: EngineFactory, live: LiveWeights
    ) -> None:
        """Whichever tensor cannot be read, the write raises."""

        async def fail(at: int) -> bool:
            async with engine() as running:
                bucket = list(weights_for(running.manifest(), 6).items())
                try:
                    await self._write(running, _failing(bucket, at))
                except Exception:
                    return True
                return False

        for at in (0, -1):
            assert self.run(fail, at), f"tensor {at} could not be read, and nobody said so"

    def test_after_a_write_that_failed_everything_can_be_written(
        self, engine: EngineFactory, live: LiveWeights
    ) -> None:
        """The engine lives on, paused, and a full update makes it whole."""

        async def again() -> list[str]:
            async with engine() as running:
                weights = weights_for(running.manifest(), 7)
                bucket = list(weights.items())
                try:
                    await self._write(running, _failing(bucket, len(bucket) // 2))
                except Exception:
                    await self._update(running, weights)
                    return differences(live(running), weights)
                return []  # the source that fails was passed over: another test says so

        assert self.run(again) == []

    def test_nothing_is_opened_while_weights_are_written(self, engine: EngineFactory) -> None:
        """No file and no socket between the first write and the end of the commit."""

        async def watched() -> list[str]:
            async with engine() as running:
                weights = weights_for(running.manifest(), 8)
                # The first one may load modules.
                await self._update(running, weights)
                with watching() as watch:
                    await self._update(running, weights)
                return watch.opened

        assert self.run(watched) == []

    # --- how

    def _rejected(
        self,
        engine: EngineFactory,
        change: Callable[[list[TensorSpec]], list[TensorSpec]],
        *,
        scope: Scope,
    ) -> None:
        async def plan() -> bool:
            async with engine() as running:
                specs = change(list(running.manifest().tensors))
                try:
                    running.plan(Manifest.of(specs), scope)
                except UpdateRejected:
                    return True
                return False

        assert self.run(plan), f"planned as a {scope} update"

    def _different_after(
        self,
        engine: EngineFactory,
        live: LiveWeights,
        buckets: Callable[[Bucket], list[Bucket]],
    ) -> list[str]:
        async def update() -> list[str]:
            async with engine() as running:
                weights = weights_for(running.manifest(), 9)
                await self._update(running, weights, buckets=buckets)
                return differences(live(running), weights)

        return self.run(update)

    async def _write(self, running: Engine, *buckets: Bucket) -> None:
        plan = running.plan(running.manifest(), Scope.FULL)
        await running.pause(PauseMode.IN_PLACE)
        for bucket in buckets:
            await running.write(plan, bucket)

    async def _update(
        self,
        running: Engine,
        weights: Mapping[str, torch.Tensor],
        *,
        epoch: int = 1,
        scope: Scope = Scope.FULL,
        buckets: Callable[[Bucket], list[Bucket]] = lambda bucket: [bucket],
    ) -> None:
        """What a commit does: plan, pause, write, commit, flush, resume."""
        specs = [
            TensorSpec(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape))
            for name, tensor in weights.items()
        ]
        plan = running.plan(Manifest.of(specs), scope)
        await running.pause(PauseMode.IN_PLACE)
        for bucket in buckets(list(weights.items())):
            await running.write(plan, bucket)
        await running.commit(WeightStamp(version=str(epoch), update_count=epoch, epoch=epoch))
        await running.flush()
        await running.resume()


def _copies(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def _one_each(bucket: Bucket) -> list[Bucket]:
    return [[item] for item in reversed(bucket)]


def _readable(bucket: Bucket) -> list[Bucket]:
    return [[(name, HeldTensor(name, dense(payload))) for name, payload in bucket]]


def _failing(bucket: list[tuple[str, torch.Tensor]], at: int) -> Bucket:
    """``bucket`` with one tensor that cannot be read."""
    name, tensor = bucket[at]
    held = HeldTensor(name, tensor, error=OSError("the disk is gone (a test says so)"))
    return [(other, held if other == name else one) for other, one in bucket]
