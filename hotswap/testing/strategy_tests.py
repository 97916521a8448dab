"""What every load strategy has to do: subclass :class:`StrategyTests` with two fixtures."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress

import torch

from hotswap.seams import LoadStrategy
from hotswap.testing.auditing import watching
from hotswap.testing.bystander_tests import BystanderTests
from hotswap.testing.cancelling import KINDS, cancelled_at
from hotswap.testing.delivered import (
    GivenUp,
    delivered,
    differences,
    read_everything,
    read_until,
    take_away,
)
from hotswap.testing.findings import check, described, listed, on_one_line, wrong_specs
from hotswap.testing.given import Publish, with_method
from hotswap.testing.holdings import (
    Holdings,
    other_loops_ended,
    resident_bytes,
    settled_bytes,
)
from hotswap.testing.suites import NeverEnded
from hotswap.types import Placement
from hotswap.uninterrupted import on_worker_thread
from hotswap.weights.pieces import spec_of

__all__ = ["StrategyTests"]

_MOST_AWAITS = 200
_MOST_BUCKETS = 50
_FINALLY = "give everything back in a finally around the yield of open()"


class StrategyTests(BystanderTests, suite=True):
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
        weights = [self.weights(seed) for seed in (1, 2)]
        sources = [self._source(publish, tensors) for tensors in weights]
        for source, tensors in zip(sources, weights, strict=True):
            got = self._read(strategy, source)
            other = differences(got, tensors, only="probe")
            check(
                not other,
                f"the update from {source!r} delivers the weights of another source: "
                f"{described(other, got, tensors)}",
                todo="keep nothing from one update to the next, or key it by source and content",
            )

    def test_two_updates_at_once_do_not_meet(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Two stages are open together, each with its own source."""
        weights = [self.weights(seed) for seed in (1, 2)]
        sources = [self._source(publish, tensors) for tensors in weights]

        async def both() -> list[dict[str, torch.Tensor]]:
            async with AsyncExitStack() as stages:
                opening = [self._stage(strategy, source) for source in sources]
                held = [await stages.enter_async_context(one) for one in opening]
                return [await read_everything(stage) for stage in held]

        for source, got, tensors in zip(sources, self.run(both), weights, strict=True):
            other = differences(got, tensors, only="probe")
            check(
                not other,
                f"while two stages were open, that of {source!r} delivered other weights: "
                f"{described(other, got, tensors)}",
                todo="keep what a stage needs in the stage, and not in the strategy",
            )

    def test_a_source_can_be_read_again(self, strategy: LoadStrategy, publish: Publish) -> None:
        """An update does not use its source up: a failed one is sent again."""
        source = self._source(publish, self.weights(1))
        first = self._read(strategy, source)
        try:
            again = self._read(strategy, source)
        except Exception as error:
            raise AssertionError(
                f"{source!r} was read once and cannot be read again ({on_one_line(error)}); leave "
                "the source as it is"
            ) from error
        other = differences(again, first)
        check(
            not other,
            f"{source!r} delivers something else when read again: {described(other, again, first)}",
            todo="leave the source as it is",
        )

    def test_a_source_that_is_not_there_is_refused(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Before anything is delivered, and whatever was read before."""
        self._read(strategy, self._source(publish, self.weights(1)))
        try:
            promised = self._promised(strategy, self.missing_source)
        except NeverEnded as error:
            raise AssertionError(
                f"opening {self.missing_source!r}, which is not there, did not end: {error}"
            ) from error
        except Exception:
            return
        raise AssertionError(
            f"{self.missing_source!r}, which is not there, was opened with {len(promised)} "
            "tensors; raise in open() when the source that update.source names cannot be read"
        )

    def test_every_rank_gets_the_whole_checkpoint(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Engines shard; a strategy gives every rank what it gives the first, at once too."""
        sources = [self._source(publish, self.weights(1)) for _ in range(2)]
        ranks = [
            Placement(rank=rank, world_size=4, local_rank=rank % 2, host=f"host-{rank // 2}")
            for rank in range(4)
        ]

        async def all_of(placements: list[Placement], source: str) -> list[dict[str, torch.Tensor]]:
            async with AsyncExitStack() as stages:
                opening = [self._stage(strategy, source, placement) for placement in placements]
                held = [await stages.enter_async_context(one) for one in opening]
                return [await read_everything(stage) for stage in held]

        [alone] = self.run(all_of, [Placement()], sources[0])
        for rank, got in enumerate(self.run(all_of, ranks, sources[1])):
            wrong = [f"{name} does not come" for name in sorted(alone.keys() - got.keys())]
            wrong += [f"{name} comes besides" for name in sorted(got.keys() - alone.keys())]
            wrong += wrong_specs((spec_of(name, tensor) for name, tensor in got.items()), alone)
            different = differences(got, alone)
            wrong += [described(different, got, alone)] if different else []
            check(
                not wrong,
                f"rank {rank} of {len(ranks)} gets something else than a rank that is alone: "
                f"{listed(wrong)}",
                todo="give every rank the whole checkpoint, whatever its placement: engines shard",
            )

    # --- what is held, and when

    def test_opening_does_not_block_the_event_loop(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Files are opened on a thread: requests are served meanwhile."""
        self._read(strategy, self._source(publish, self.weights(1)))
        source = self._source(publish, self.weights(2))

        async def blocking() -> list[str]:
            with watching() as watch:
                async with self._stage(strategy, source):
                    pass
            return watch.blocking

        held_up = self.run(blocking)
        check(
            not held_up,
            f"the event loop waited for {listed(held_up)}",
            todo="do it on a thread: await anyio.to_thread.run_sync(function, argument)",
        )

    def test_nothing_is_opened_while_weights_are_written(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Generation waits for the writes: what they need was opened with the stage."""
        self._read(strategy, self._source(publish, self.weights(1)))
        source = self._source(publish, self.weights(2))

        async def written() -> tuple[list[str], Exception | None]:
            failure: Exception | None = None
            async with self._stage(strategy, source) as stage:
                take_away(source)
                # From here on: what is mapped has got another name.
                before = Holdings.now()
                with watching() as watch:
                    try:
                        await read_everything(stage)
                    except Exception as error:
                        failure = error
                more = Holdings.now().more_than(before).items
            return [*watch.opened, *(item for item in more if item.startswith("mapping"))], failure

        opened_late, failure = self.run(written)
        todo = "open what the buckets need in open(), and let them read from what is open"
        check(
            not opened_late,
            f"this was opened while the buckets were read: {listed(opened_late)}",
            todo=todo,
        )
        if failure is not None:
            raise AssertionError(
                f"the buckets could not be read once {source!r} was moved away "
                f"({on_one_line(failure)}); {todo}"
            ) from failure

    def test_leaving_gives_every_handle_back(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Descriptors, mappings, threads, tasks and processes of an update that succeeds."""
        self._read(strategy, self._source(publish, self.weights(1)))
        source = self._source(publish, self.weights(2))
        left, _ = self.run(self._left_after, strategy, source, -1)
        check(
            not left.items,
            f"after an update that succeeded this is still held: {left}",
            todo=_FINALLY,
        )

    def test_an_update_that_fails_leaves_nothing(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Whichever bucket it fails at."""
        # The first update also loads modules and starts threads that stay.
        self._read(strategy, self._source(publish, self.weights(1)))
        source = self._source(publish, self.weights(2))
        for number in range(_MOST_BUCKETS):
            left, failed = self.run(self._left_after, strategy, source, number)
            if not failed:
                return
            check(
                not left.items,
                f"after an update that failed at bucket {number} this is still held: {left}",
                todo=f"{_FINALLY}, which runs when the update fails too",
            )

    def test_a_cancelled_update_leaves_nothing(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Cancelled at every await, by a scope and by its task."""
        self._read(strategy, self._source(publish, self.weights(1)))

        async def cancel(kind: str, at: int) -> bool:
            source = self._source(publish, self.weights(2))
            before = Holdings.now()
            cancelled = await cancelled_at(at, self._deliver(strategy, source), kind=kind)
            if cancelled.ended:
                left = await before.released(within_s=self.settle_s)
                check(
                    not left.items,
                    f"cancelled (by its {kind}) at await {at}, in {cancelled.place}, it still "
                    f"holds {left}",
                    todo=f"{_FINALLY}, and begin that before the first await: a cancellation is "
                    "a BaseException, and no Exception",
                )
            return cancelled.reached

        for kind in KINDS:
            at = 0
            while self.run(cancel, kind, at):
                at += 1
                check(
                    at < _MOST_AWAITS,
                    f"one update gives way more than {_MOST_AWAITS} times",
                    todo="do more between two awaits",
                )

    def test_a_cancellation_of_opening_is_not_swallowed(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """An update that was given up is not made all the same: opening has to end."""
        source = self._source(publish, self.weights(1))
        self._read(strategy, source)

        async def cancel(at: int) -> bool:
            entered: list[bool] = []
            early: list[bool] = []

            async def enter() -> None:
                # A source that cannot be read again has a test of its own.
                with suppress(Exception):
                    async with strategy.open(self._update(source), Placement()):
                        entered.append(True)

            cancelled = await cancelled_at(
                at, enter(), kind="task", before=lambda: early.append(not entered)
            )
            check(
                not (any(early) and entered),
                f"cancelled at await {at} of opening, in {cancelled.place}, it went on and "
                "delivered the stage",
                todo="let a cancellation pass: catch Exception, or raise it again",
            )
            return any(early) and at < _MOST_AWAITS

        at = 0
        while self.run(cancel, at):
            at += 1

    def test_a_file_that_cannot_be_opened_rejects_and_leaves_nothing(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """No descriptor is left for any one of the files: the update fails, and whole."""
        source = self._source(publish, self.weights(2))
        whole = self._read(strategy, source)

        async def fail(at: int) -> bool:
            before = Holdings.now()
            with watching(fail_at=at) as watch:
                try:
                    got = await self._deliver(strategy, source)
                except Exception:
                    got = whole
            if not watch.failed:
                return False
            what = f"opening number {at} ({watch.opened[at]}) failed"
            left = await before.released(within_s=self.settle_s)
            check(
                not left.items,
                f"{what}, and this is still held: {left}",
                todo="give back what was opened before it, when open() raises too",
            )
            wrong = [f"{name} does not come" for name in sorted(whole.keys() - got.keys())]
            different = differences(got, whole)
            wrong += [described(different, got, whole)] if different else []
            check(
                not wrong,
                f"{what}, and the update went on: {listed(wrong)}",
                todo="let what opening raises reject the update",
            )
            return True

        at = 0
        while self.run(fail, at):
            at += 1

    def test_an_error_of_the_update_is_passed_on(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """What the engine raises is not turned into a success on the way out."""
        source = self._source(publish, self.weights(1))
        with_method(strategy, "open", fixture="strategy")

        class Wrong(Exception):
            pass

        async def fail() -> None:
            async with strategy.open(self._update(source), Placement()):
                raise Wrong

        try:
            self.run(fail)
        except Wrong:
            return
        raise AssertionError(
            "an exception of the update was swallowed by leaving the stage; raise it again: "
            "use finally, or raise at the end of the except"
        )

    def test_leaving_gives_memory_back(self, strategy: LoadStrategy, publish: Publish) -> None:
        """A checkpoint of ``huge_bytes`` does not stay behind in memory."""
        self._read(strategy, self._source(publish, self.weights(1)))
        source = self._source(publish, self._huge())

        async def grown() -> int:
            await other_loops_ended(within_s=self.settle_s)
            before = resident_bytes()
            async with self._stage(strategy, source) as stage:
                await on_worker_thread(lambda buckets: delivered(buckets).clear(), stage.buckets())
            del stage
            allowed = before + self.huge_bytes // 2
            return await settled_bytes(at_most=allowed, within_s=self.settle_s) - before

        more = self.run(grown)
        check(
            more <= self.huge_bytes // 2,
            f"after an update of {self.huge_bytes / 2**20:.0f} MiB the process holds "
            f"{more / 2**20:.0f} MiB more than before",
            todo="drop the tensors when the stage is left: no reference in the strategy, in a "
            "cache or in a cycle",
        )

    # --- how

    async def _left_after(
        self, strategy: LoadStrategy, source: str, number: int
    ) -> tuple[Holdings, bool]:
        """What an update that fails at bucket ``number`` leaves, and whether there is that one."""
        before = Holdings.now()
        failed = False
        try:
            async with self._stage(strategy, source) as stage:
                await on_worker_thread(read_until, stage.buckets(), number)
        except GivenUp:
            failed = True
        return await before.released(within_s=self.settle_s), failed
