"""What a load strategy promises and what it delivers: one half of its suite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import ClassVar

import torch

from hotswap.fetch import opened
from hotswap.seams import LoadStrategy, Stage
from hotswap.testing.any_values import any_values
from hotswap.testing.delivered import (
    arrivals,
    delivered,
    dense,
    differences,
    read_everything,
    read_on_threads,
)
from hotswap.testing.findings import check, described, listed, wrong_specs
from hotswap.testing.given import Publish, WrongFixture, published, with_method
from hotswap.testing.suites import Suite
from hotswap.types import Bucket, Placement, TensorSpec, Update
from hotswap.uninterrupted import on_worker_thread
from hotswap.weights.pieces import spec_of

__all__ = ["DeliveryTests"]


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
        weights = self.weights(1)
        promised = {spec.name for spec in self._promised(strategy, self._source(publish, weights))}
        lacking = sorted(weights.keys() - promised)
        more = sorted(promised - weights.keys())
        check(
            not lacking,
            f"the manifest lacks {listed(lacking)}, which the source has",
            todo="announce every tensor of the source in the manifest of the stage",
        )
        check(
            not more,
            f"the manifest names {listed(more)}, which the source does not have",
            todo="announce under their own names the tensors that will come, and no others",
        )

    def test_the_manifest_has_the_shapes_and_dtypes_of_the_source(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """An update is planned with them before anything is read."""
        weights = self.weights(1)
        wrong = wrong_specs(self._promised(strategy, self._source(publish, weights)), weights)
        check(
            not wrong,
            f"the manifest says {listed(wrong)}",
            todo="take shape and dtype from where the tensor is stored; a dtype that the source "
            "cannot hold does not belong into dtypes of the test class",
        )

    # --- what is delivered

    def test_no_tensor_is_delivered_twice(self, strategy: LoadStrategy, publish: Publish) -> None:
        """Each name comes once in one pass."""
        came, _ = self._arrived(strategy, self._source(publish, self.weights(1)))
        twice = [f"{name} in buckets {listed(at)}" for name, at in came.items() if len(at) > 1]
        check(
            not twice,
            f"a tensor comes more than once: {'; '.join(twice)}",
            todo="deliver each name of the manifest once in one pass of buckets()",
        )

    def test_no_tensor_is_missing(self, strategy: LoadStrategy, publish: Publish) -> None:
        """Everything that the manifest names is delivered."""
        came, promised = self._arrived(strategy, self._source(publish, self.weights(1)))
        missing = sorted(promised - came.keys())
        check(
            not missing,
            f"the manifest names {listed(missing)}, and no bucket delivers it",
            todo="deliver everything that the manifest announces",
        )

    def test_nothing_comes_that_was_not_announced(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """What the manifest does not name is not delivered."""
        came, promised = self._arrived(strategy, self._source(publish, self.weights(1)))
        strangers = [
            f"{name} (bucket {at[0]})" for name, at in came.items() if name not in promised
        ]
        check(
            not strangers,
            f"what the manifest does not name comes: {listed(strangers)}",
            todo="announce it in the manifest, or do not deliver it",
        )

    def test_what_comes_is_what_was_announced(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Shape and dtype of each payload are those of the manifest."""

        async def compare(source: str) -> list[str]:
            async with self._stage(strategy, source) as stage:
                buckets = await on_worker_thread(list, stage.buckets())
                return [
                    f"{spec_of(name, payload)} in bucket {number}, announced as "
                    f"{stage.manifest[name]}"
                    for number, name, payload in arrivals(buckets)
                    if name in stage.manifest and spec_of(name, payload) != stage.manifest[name]
                ]

        other = self.run(compare, self._source(publish, self.weights(1)))
        check(
            not other,
            f"what comes is not what was announced: {listed(other)}",
            todo="deliver each tensor in the shape and dtype that the manifest says",
        )

    def test_the_bytes_are_those_of_the_source(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Bit by bit, in every dtype."""
        weights = self.weights(1)
        self._check_bytes(self._read(strategy, self._source(publish, weights)), weights)

    def test_empty_and_scalar_tensors_are_delivered(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Shapes ``[]``, ``[0]``, ``[3, 0, 2]`` and ``[1, 1]``."""
        shapes = {"scalar": (), "empty": (0,), "hollow": (3, 0, 2), "one": (1, 1)}
        weights = {
            name: torch.full(shape, 2.5).to(self._dtypes()[0]) for name, shape in shapes.items()
        }
        got = self._read(strategy, self._source(publish, weights))
        wrong = [
            f"{name} of shape {list(shape)} "
            + (f"comes as {list(got[name].shape)}" if name in got else "does not come")
            for name, shape in shapes.items()
            if name not in got or tuple(got[name].shape) != shape
        ]
        check(
            not wrong,
            listed(wrong),
            todo="deliver tensors without elements and without dimensions as they are",
        )
        self._check_bytes(got, weights)

    def test_a_huge_tensor_is_delivered_whole(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """``huge_bytes`` in one tensor, the last byte included."""
        weights = self._huge()
        got = self._read(strategy, self._source(publish, weights))
        check(
            "huge" in got,
            f"a tensor of {self.huge_bytes} bytes does not come",
            todo="deliver tensors of any size",
        )
        self._check_bytes(got, weights)

    def test_buckets_start_afresh(self, strategy: LoadStrategy, publish: Publish) -> None:
        """A second pass delivers what the first one did, also after one that was given up."""

        async def passes(source: str) -> list[list[str]]:
            async with self._stage(strategy, source) as stage:

                def work() -> list[list[str]]:
                    next(iter(stage.buckets()), None)
                    both = [list(arrivals(stage.buckets())) for _ in range(2)]
                    return [[name for _, name, _ in one] for one in both]

                return await on_worker_thread(work)

        first, second = self.run(passes, self._source(publish, self.weights(1)))
        check(
            first == second != [],
            f"after a pass that was given up at bucket 0 the next one delivered {len(first)} "
            f"tensors ({listed(first) or 'none'}), and one more {len(second)} "
            f"({listed(second) or 'none'})",
            todo="begin from the first tensor whenever buckets() is called: a failed commit is "
            "repeated from the same stage",
        )

    def test_a_bucket_stays_valid_until_the_stage_is_left(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Memory is not used again for a later bucket: a direct update holds buckets."""

        async def compare(source: str) -> str:
            async with self._stage(strategy, source) as stage:

                def work() -> str:
                    at_once: dict[str, torch.Tensor] = {}
                    kept: list[Bucket] = []
                    for bucket in stage.buckets():
                        at_once |= {name: dense(payload) for name, payload in bucket}
                        kept.append(bucket)
                    later = delivered(kept)
                    return described(differences(later, at_once), later, at_once)

                return await on_worker_thread(work)

        changed = self.run(compare, self._source(publish, self.weights(1)))
        check(
            not changed,
            f"a bucket that was kept while later ones came has changed: {changed}",
            todo="give every bucket memory of its own until the stage is left",
        )

    def test_payloads_can_be_read_again_and_on_any_thread(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Several threads read the same payload at the same time, twice each."""

        async def compare(source: str) -> list[str]:
            async with self._stage(strategy, source) as stage:
                buckets = await on_worker_thread(list, stage.buckets())
                return await on_worker_thread(read_on_threads, buckets)

        changed = self.run(compare, self._source(publish, self.weights(1)))
        check(
            not changed,
            f"threads that read at the same time got {listed(changed)}",
            todo="keep no position in a payload: read with os.preadv, or under a lock",
        )

    # --- how

    def weights(self, seed: int) -> dict[str, torch.Tensor]:
        """A small checkpoint: two tensors of each dtype, and ``probe``, which names the seed.

        ``twin`` has the shape and dtype of another, as most tensors of a real one have.
        """
        draw = torch.Generator().manual_seed(seed)
        found = {
            f"layers.{number}.{str(dtype).removeprefix('torch.')}": any_values(
                (number + 1, 3), dtype, draw=draw
            )
            for dtype in self._dtypes()
            for number in range(2)
        }
        first = next(iter(found.values()))
        return {**found, "probe": torch.full((4,), seed).to(first.dtype), "twin": first.roll(1, -1)}

    def _dtypes(self) -> tuple[torch.dtype, ...]:
        """Those of the class. Raises: WrongFixture."""
        given: object = self.dtypes
        several = isinstance(given, tuple | list) and given
        if not several or not all(isinstance(dtype, torch.dtype) for dtype in self.dtypes):
            raise WrongFixture(
                f"dtypes of {type(self).__name__} is {self.dtypes!r}, wanted one dtype or more "
                "that the source can hold, dtypes = (torch.float32,)"
            )
        return self.dtypes

    def _huge(self) -> dict[str, torch.Tensor]:
        """One tensor of ``huge_bytes``."""
        kind = torch.float32 if torch.float32 in self._dtypes() else self.dtypes[0]
        numbers = torch.arange(self.huge_bytes // kind.itemsize, dtype=torch.float32)
        return {"huge": numbers if kind is torch.float32 else numbers.remainder(100).to(kind)}

    def _source(self, publish: Publish, tensors: Mapping[str, torch.Tensor]) -> str:
        """Where ``publish`` has put the tensors. Raises: WrongFixture."""
        earlier: list[str] = self.__dict__.setdefault("_sources", [])
        return published(publish, tensors, earlier=earlier)

    def _update(self, source: str) -> Update:
        return Update(source=source, strategy=self.strategy_name)

    def _stage(
        self, strategy: LoadStrategy, source: str, placement: Placement | None = None
    ) -> AbstractAsyncContextManager[Stage]:
        with_method(strategy, "open", fixture="strategy")
        return opened(strategy, self._update(source), placement or Placement())

    def _promised(self, strategy: LoadStrategy, source: str) -> tuple[TensorSpec, ...]:
        async def promised() -> tuple[TensorSpec, ...]:
            async with self._stage(strategy, source) as stage:
                return stage.manifest.tensors

        return self.run(promised)

    def _arrived(
        self, strategy: LoadStrategy, source: str
    ) -> tuple[Mapping[str, list[int]], set[str]]:
        """The buckets that each name came in, and the names of the manifest."""

        async def arrived() -> tuple[Mapping[str, list[int]], set[str]]:
            async with self._stage(strategy, source) as stage:
                buckets = await on_worker_thread(list, stage.buckets())
                came = defaultdict[str, list[int]](list)
                for number, name, _ in arrivals(buckets):
                    came[name].append(number)
                return came, set(stage.manifest.names)

        return self.run(arrived)

    def _read(self, strategy: LoadStrategy, source: str) -> dict[str, torch.Tensor]:
        return self.run(self._deliver, strategy, source)

    async def _deliver(self, strategy: LoadStrategy, source: str) -> dict[str, torch.Tensor]:
        async with self._stage(strategy, source) as stage:
            return await read_everything(stage)

    def _check_bytes(
        self, got: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]
    ) -> None:
        different = differences(got, wanted)
        check(
            not different,
            f"other bytes come than the source has: {described(different, got, wanted)}",
            todo="deliver what is stored, bit by bit: no cast, no order of bytes of your own",
        )
