"""What every load strategy has to do: subclass :class:`StrategyTests` with two fixtures."""

from __future__ import annotations

from contextlib import AsyncExitStack

import torch

from hotswap.fetch import opened
from hotswap.seams import LoadStrategy
from hotswap.testing.auditing import watching
from hotswap.testing.cancelling import KINDS, cancelled_at
from hotswap.testing.delivered import (
    GivenUp,
    delivered,
    differences,
    read_everything,
    read_until,
    take_away,
)
from hotswap.testing.delivery_tests import DeliveryTests, Publish
from hotswap.testing.holdings import (
    Holdings,
    other_loops_ended,
    resident_bytes,
    settled_bytes,
)
from hotswap.types import Placement
from hotswap.uninterrupted import on_worker_thread

__all__ = ["Publish", "StrategyTests"]

_MOST_AWAITS = 200


class StrategyTests(DeliveryTests, suite=True):
    """Fixtures: ``strategy``, a new ``LoadStrategy``, and ``publish``, a :data:`Publish`.

    ``dtypes`` are those that the source can hold. ``missing_source`` names one that is not
    there. ``huge_bytes`` is the size of the largest tensor that is tried. ``strategy_name``
    is the name that updates ask for.
    """

    # --- which source

    def test_another_source_is_another_checkpoint(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """What was read for one update is not served for the next."""
        published = [self.weights(seed) for seed in (1, 2)]
        sources = [publish(tensors) for tensors in published]
        for source, tensors in zip(sources, published, strict=True):
            got = self.run(self._deliver, strategy, source)
            assert differences(got, tensors, only="probe") == [], source

    def test_two_updates_at_once_do_not_meet(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Two stages are open together, each with its own source."""
        published = [self.weights(seed) for seed in (1, 2)]

        async def both(sources: list[str]) -> list[dict[str, torch.Tensor]]:
            async with AsyncExitStack() as stages:
                opening = [opened(strategy, self._update(one), Placement()) for one in sources]
                held = [await stages.enter_async_context(one) for one in opening]
                return [await read_everything(stage) for stage in held]

        got = self.run(both, [publish(tensors) for tensors in published])
        for one, tensors in zip(got, published, strict=True):
            assert differences(one, tensors, only="probe") == []

    def test_a_source_can_be_read_again(self, strategy: LoadStrategy, publish: Publish) -> None:
        """An update does not use its source up: a failed one is sent again."""
        source = publish(self.weights(1))
        first = self.run(self._deliver, strategy, source)
        assert differences(self.run(self._deliver, strategy, source), first) == []

    def test_a_source_that_is_not_there_is_refused(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Before anything is delivered, and whatever was read before."""
        self.run(self._deliver, strategy, publish(self.weights(1)))
        try:
            self.run(self._manifest, strategy, self.missing_source)
        except TimeoutError:
            raise AssertionError(f"opening {self.missing_source!r} did not end") from None
        except Exception:
            return
        raise AssertionError(f"{self.missing_source!r} was opened")

    def test_every_rank_gets_the_whole_checkpoint(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Engines shard; a strategy gives every rank what it gives the first, at once too."""
        sources = [publish(self.weights(1)) for _ in range(2)]
        ranks = [
            Placement(rank=rank, world_size=4, local_rank=rank % 2, host=f"host-{rank // 2}")
            for rank in range(4)
        ]

        async def all_of(placements: list[Placement], source: str) -> list[list[str]]:
            found = []
            async with AsyncExitStack() as stages:
                update = self._update(source)
                opening = [opened(strategy, update, placement) for placement in placements]
                for stage in [await stages.enter_async_context(one) for one in opening]:
                    found.append(sorted(await read_everything(stage)))
            return found

        [alone] = self.run(all_of, [Placement()], sources[0])
        assert self.run(all_of, ranks, sources[1]) == [alone] * len(ranks)

    # --- what is held, and when

    def test_opening_does_not_block_the_event_loop(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Files are opened on a thread: requests are served meanwhile."""
        self.run(self._deliver, strategy, publish(self.weights(1)))
        source = publish(self.weights(2))

        async def blocking() -> list[str]:
            with watching() as watch:
                async with opened(strategy, self._update(source), Placement()):
                    pass
            return watch.blocking

        assert self.run(blocking) == []

    def test_nothing_is_opened_while_weights_are_written(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Generation waits for the writes: what they need was opened with the stage."""
        self.run(self._deliver, strategy, publish(self.weights(1)))
        source = publish(self.weights(2))

        async def written() -> list[str]:
            async with opened(strategy, self._update(source), Placement()) as stage:
                before = Holdings.now()
                take_away(source)
                with watching() as watch:
                    await read_everything(stage)
                more = Holdings.now().more_than(before).items
            return [*watch.opened, *(item for item in more if item.startswith("mapping"))]

        assert self.run(written) == []

    def test_leaving_gives_every_handle_back(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Descriptors, mappings, threads and processes of an update that succeeds."""
        self._assert_nothing_left(strategy, [publish(self.weights(seed)) for seed in (1, 2)])

    def test_an_update_that_fails_leaves_nothing(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Whichever bucket it fails at."""
        sources = [publish(self.weights(seed)) for seed in (1, 2)]
        self._assert_nothing_left(strategy, sources, failing=True)

    def test_a_cancelled_update_leaves_nothing(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Cancelled at every await, by a scope and by its task."""
        self.run(self._deliver, strategy, publish(self.weights(1)))

        async def cancel(kind: str, at: int) -> bool:
            source = publish(self.weights(2))
            before = Holdings.now()
            cancelled = await cancelled_at(at, self._deliver(strategy, source), kind=kind)
            if cancelled.ended:
                left = await before.released(within_s=self.settle_s)
                assert not left.items, f"cancelled ({kind}) at await {at}: {left} is held"
            return cancelled.reached

        for kind in KINDS:
            at = 0
            while self.run(cancel, kind, at):
                at += 1
                assert at < _MOST_AWAITS, f"more than {_MOST_AWAITS} awaits"

    def test_a_file_that_cannot_be_opened_rejects_and_leaves_nothing(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """No descriptor is left for any one of the files: the update fails, and whole."""
        source = publish(self.weights(2))
        whole = self.run(self._deliver, strategy, source)

        async def fail(at: int) -> bool:
            before = Holdings.now()
            with watching(fail_at=at) as watch:
                try:
                    got = await self._deliver(strategy, source)
                except Exception:
                    got = whole
            if not watch.failed:
                return False
            left = await before.released(within_s=self.settle_s)
            assert not left.items, f"opening number {at} failed: {left} is held"
            silent = sorted(got) != sorted(whole) or differences(got, whole)
            assert not silent, f"opening number {at} failed in silence"
            return True

        at = 0
        while self.run(fail, at):
            at += 1

    def test_an_error_of_the_update_is_passed_on(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """What the engine raises is not turned into a success on the way out."""

        class Wrong(Exception):
            pass

        async def fail(source: str) -> None:
            async with strategy.open(self._update(source), Placement()):
                raise Wrong

        try:
            self.run(fail, publish(self.weights(1)))
        except Wrong:
            return
        raise AssertionError("leaving the stage swallowed what the update had raised")

    def test_leaving_gives_memory_back(self, strategy: LoadStrategy, publish: Publish) -> None:
        """A checkpoint of ``huge_bytes`` does not stay behind in memory."""
        self.run(self._deliver, strategy, publish(self.weights(1)))
        source = publish({"huge": torch.ones(self.huge_bytes // 4)})

        async def grown() -> int:
            await other_loops_ended(within_s=self.settle_s)
            before = resident_bytes()
            async with opened(strategy, self._update(source), Placement()) as stage:
                await on_worker_thread(lambda buckets: delivered(buckets).clear(), stage.buckets())
            del stage
            allowed = before + self.huge_bytes // 2
            return await settled_bytes(at_most=allowed, within_s=self.settle_s) - allowed

        assert self.run(grown) <= 0

    # --- how

    def _assert_nothing_left(
        self, strategy: LoadStrategy, sources: list[str], *, failing: bool = False
    ) -> None:
        async def left_after(number: int) -> Holdings:
            before = Holdings.now()
            try:
                async with opened(strategy, self._update(sources[1]), Placement()) as stage:
                    await on_worker_thread(read_until, stage.buckets(), number)
            except GivenUp:
                assert failing
            return await before.released(within_s=self.settle_s)

        # The first update also loads modules and starts threads that stay.
        self.run(self._deliver, strategy, sources[0])
        numbers = range(3) if failing else [-1]
        for number in numbers:
            left = self.run(left_after, number)
            assert not left.items, f"still held: {left}"
