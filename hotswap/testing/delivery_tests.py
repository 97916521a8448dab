"""What a load strategy promises and what it delivers: one half of its suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, TypeAlias

import torch

from hotswap.fetch import opened
from hotswap.seams import LoadStrategy
from hotswap.testing.delivered import (
    delivered,
    dense,
    differences,
    names_of,
    read_everything,
    read_on_threads,
)
from hotswap.testing.suites import Suite
from hotswap.types import Bucket, Placement, TensorSpec, Update
from hotswap.uninterrupted import on_worker_thread
from hotswap.weights.pieces import spec_of

__all__ = ["DeliveryTests", "Publish"]

Publish: TypeAlias = Callable[[Mapping[str, torch.Tensor]], str]
"""Puts tensors where the strategy reads them, each time in another place; the source."""


class DeliveryTests(Suite, suite=True):
    """Fixtures and settings are those of ``StrategyTests``."""

    dtypes: ClassVar[tuple[torch.dtype, ...]] = (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.uint8,
        torch.bool,
    )
    missing_source: ClassVar[str] = "/hotswap-conformance/no-such-source"
    huge_bytes: ClassVar[int] = 64 * 2**20
    strategy_name: ClassVar[str] = "under-test"

    # --- what is promised

    def test_the_manifest_names_every_tensor(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Neither more nor less than the source has."""
        published = self.weights(1)
        manifest = self.run(self._manifest, strategy, publish(published))
        assert sorted(spec.name for spec in manifest) == sorted(published)

    def test_the_manifest_has_the_shapes_and_dtypes_of_the_source(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """An update is planned with them before anything is read."""
        published = self.weights(1)
        for spec in self.run(self._manifest, strategy, publish(published)):
            if spec.name in published:
                tensor = published[spec.name]
                assert (spec.dtype, spec.shape) == (tensor.dtype, tuple(tensor.shape)), spec

    # --- what is delivered

    def test_no_tensor_is_delivered_twice(self, strategy: LoadStrategy, publish: Publish) -> None:
        """Each name comes once in one pass."""
        _, names = self.run(self._names, strategy, publish(self.weights(1)))
        assert sorted(set(names)) == sorted(names)

    def test_no_tensor_is_missing(self, strategy: LoadStrategy, publish: Publish) -> None:
        """Everything that the manifest names is delivered."""
        promised, names = self.run(self._names, strategy, publish(self.weights(1)))
        assert set(promised) - set(names) == set()

    def test_nothing_comes_that_was_not_announced(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """What the manifest does not name is not delivered."""
        promised, names = self.run(self._names, strategy, publish(self.weights(1)))
        assert set(names) - set(promised) == set()

    def test_what_comes_is_what_was_announced(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Shape and dtype of each payload are those of the manifest."""

        async def compare(source: str) -> None:
            async with opened(strategy, self._update(source), Placement()) as stage:
                for bucket in await on_worker_thread(list, stage.buckets()):
                    for name, payload in bucket:
                        if name in stage.manifest:
                            assert spec_of(name, payload) == stage.manifest[name]

        self.run(compare, publish(self.weights(1)))

    def test_the_bytes_are_those_of_the_source(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Bit by bit, in every dtype."""
        published = self.weights(1)
        got = self.run(self._deliver, strategy, publish(published))
        assert differences(got, published) == []

    def test_empty_and_scalar_tensors_are_delivered(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Shapes ``[]``, ``[0]``, ``[3, 0, 2]`` and ``[1, 1]``."""
        shapes = {"scalar": (), "empty": (0,), "hollow": (3, 0, 2), "one": (1, 1)}
        published = {name: torch.full(shape, 2.5) for name, shape in shapes.items()}
        got = self.run(self._deliver, strategy, publish(published))
        came = {name: tuple(got[name].shape) for name in shapes if name in got}
        assert came == shapes
        assert differences(got, published) == []

    def test_a_huge_tensor_is_delivered_whole(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """``huge_bytes`` in one tensor, the last byte included."""
        published = {"huge": torch.arange(self.huge_bytes // 4, dtype=torch.float32)}
        got = self.run(self._deliver, strategy, publish(published))
        assert differences(got, published) == []

    def test_buckets_start_afresh(self, strategy: LoadStrategy, publish: Publish) -> None:
        """A second pass delivers what the first one did, also after one that was given up."""

        async def passes(source: str) -> list[list[str]]:
            async with opened(strategy, self._update(source), Placement()) as stage:

                def work() -> list[list[str]]:
                    next(iter(stage.buckets()), None)
                    return [names_of(list(stage.buckets())) for _ in range(2)]

                return await on_worker_thread(work)

        first, second = self.run(passes, publish(self.weights(1)))
        assert first
        assert second == first

    def test_a_bucket_stays_valid_until_the_stage_is_left(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Memory is not used again for a later bucket: a direct update holds buckets."""

        async def compare(source: str) -> list[str]:
            async with opened(strategy, self._update(source), Placement()) as stage:

                def work() -> list[str]:
                    at_once: dict[str, torch.Tensor] = {}
                    kept: list[Bucket] = []
                    for bucket in stage.buckets():
                        at_once |= {name: dense(payload) for name, payload in bucket}
                        kept.append(bucket)
                    return differences(delivered(kept), at_once)

                return await on_worker_thread(work)

        assert self.run(compare, publish(self.weights(1))) == []

    def test_payloads_can_be_read_again_and_on_any_thread(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Several threads read the same payload at the same time, twice each."""

        async def compare(source: str) -> list[str]:
            async with opened(strategy, self._update(source), Placement()) as stage:
                buckets = await on_worker_thread(list, stage.buckets())
                return await on_worker_thread(read_on_threads, buckets)

        assert self.run(compare, publish(self.weights(1))) == []

    # --- how

    def weights(self, seed: int) -> dict[str, torch.Tensor]:
        """A small checkpoint: two tensors of each dtype, and ``probe``, which names the seed."""
        draw = torch.Generator().manual_seed(seed)
        found = {
            f"layers.{number}.{str(dtype).removeprefix('torch.')}": torch.randint(
                0, 100, (number + 1, 3), generator=draw
            ).to(dtype)
            for dtype in self.dtypes
            for number in range(2)
        }
        return {**found, "probe": torch.full((4,), seed).to(self.dtypes[0])}

    def _update(self, source: str) -> Update:
        return Update(source=source, strategy=self.strategy_name)

    async def _manifest(self, strategy: LoadStrategy, source: str) -> tuple[TensorSpec, ...]:
        async with opened(strategy, self._update(source), Placement()) as stage:
            return stage.manifest.tensors

    async def _names(self, strategy: LoadStrategy, source: str) -> tuple[list[str], list[str]]:
        """Those of the manifest, and those that came."""
        async with opened(strategy, self._update(source), Placement()) as stage:
            came = await on_worker_thread(list, stage.buckets())
            return list(stage.manifest.names), names_of(came)

    async def _deliver(self, strategy: LoadStrategy, source: str) -> dict[str, torch.Tensor]:
        async with opened(strategy, self._update(source), Placement()) as stage:
            return await read_everything(stage)
