"""One update, from its request to its report.

Rules:

* Before the first write everything may be cancelled and nothing is changed.
* The first write, all others, the facts and the resume are one piece of work that
  runs to its end in a task of its own, whoever stops waiting for it.
* The stamp changes with the facts, and only when every write has succeeded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from anyio.lowlevel import checkpoint_if_cancelled

from hotswap.attempt import Attempt, Phase
from hotswap.command_queue import CommandQueue, OneAtATime
from hotswap.coverage import Coverage
from hotswap.errors import Busy, UpdateRejected
from hotswap.fetch import Buckets, PreRead, opened, rejecting, run_pre_read, strategy_named
from hotswap.foreign import contained, words_of
from hotswap.gathering import Gathering
from hotswap.reconcile import reconcile
from hotswap.seams import Engine, EnginePause, LoadStrategy, Plan, Stage, Traced
from hotswap.sparse.cache import PATCHES
from hotswap.sparse.commit import SparseTransaction
from hotswap.sparse.live_origin import LiveOrigin
from hotswap.sparse.origin import Base
from hotswap.sparse.staging import origin_of_stage, stage_sparse
from hotswap.state import Command, Machine, Outcome, Situation, Weights, update_command
from hotswap.transaction import Transaction
from hotswap.types import (
    LoadMode,
    PauseMode,
    Placement,
    Scope,
    Update,
    UpdateReport,
    WeightStamp,
)
from hotswap.uninterrupted import on_worker_thread, uninterrupted
from hotswap.weights.reserve import Reserve
from hotswap.wire.strategy import PUSHED, PushStrategy, comes_in_order, mark_of
from hotswap.write_window import WriteWindow
from hotswap.writes import Writing, flush_after_commit, outcome_after, write_everything

__all__ = ["UpdatePipeline"]

_log = logging.getLogger("hotswap.update")


class _Outdated(Exception):
    """What was staged is about weights that are not live any more."""


class UpdatePipeline:
    """Runs updates; owns the stamp of the live weights. Event-loop thread only."""

    def __init__(
        self,
        *,
        engine: Engine,
        machine: Machine,
        queue: CommandQueue,
        strategies: Mapping[str, LoadStrategy],
        placement: Placement,
        pre_read: Sequence[PreRead],
        stamp: WeightStamp,
        window: WriteWindow,
    ) -> None:
        self._engine = engine
        self._machine = machine
        self._queue = queue
        self._strategies = strategies
        self._push = PushStrategy()
        self._placement = placement
        self._pre_read = pre_read
        self._window = window
        self._staging = OneAtATime(wait_s=queue.wait_s)
        names = engine.manifest().names
        self._reserve = Reserve(len(names))
        self.coverage: Coverage = Coverage(names)
        machine.observe(self.coverage.note_change)
        boot = engine.origin if isinstance(engine, Traced) else None
        self._live = LiveOrigin(boot if isinstance(boot, Base) else None, epoch=stamp.epoch)
        machine.observe(self._live.note_change)
        self._stopping: PauseMode | None = None
        self.stamp: WeightStamp = stamp
        self.last_report: UpdateReport | None = None

    def __repr__(self) -> str:
        return f"<UpdatePipeline {self.stamp}>"

    async def run(self, attempt: Attempt) -> UpdateReport:
        """Run one update. Raises: CommandError and UpdateRejected (weights untouched),
        UpdateRolledBack, UpdateFailed (weights not whole)."""
        update = attempt.update
        pushed = update.strategy == PUSHED
        strategy = self._push if pushed else strategy_named(update.strategy, self._strategies)
        if self._queue.idle:
            # Otherwise a command ahead may change the answer; it is asked again in turn.
            attempt.command = update_command(self._machine.facts)
            self._machine.check(attempt.command, self._situation(update))
        if not pushed:
            # A push comes from no place that a hook could wait for.
            await run_pre_read(self._pre_read, update)
        resident = (pushed and not comes_in_order(update)) or update.mode is LoadMode.DIRECT
        run = self._run_resident if resident else self._run_staged
        try:
            try:
                return await run(attempt, strategy)
            except _Outdated:
                attempt.whole = True
                return await run(attempt, strategy)
        except UpdateRejected as error:
            # Whoever has left has not failed: it may have sent the same again meanwhile.
            await checkpoint_if_cancelled()
            if update.chunk and self.coverage.begun:
                try:
                    await self.give_up(words_of(error))
                except Busy:
                    _log.exception("%r stays as it is; send a full update", self.coverage)
            raise

    async def give_up(self, reason: str) -> None:
        """A chunk of a push that has written others will not come: the weights are not whole.

        A no-op while no push is begun. Requests in flight are parked. Raises: Busy.
        """
        with await self._queue.enter(Command.UPDATE):
            if not self.coverage.begun or not self._machine.facts.weights.resident:
                return
            _log.warning("%r ends here, the weights are not whole: %s", self.coverage, reason)
            command = update_command(self._machine.facts)
            now = Situation(pauses_itself=True, chunk=True)
            self._machine.begin(command, now)
            try:
                if command is Command.SWAP:
                    await self._pause(PauseMode.RETRACT)
            finally:
                await uninterrupted(self._settle(Outcome.TORN, now))

    async def _run_staged(self, attempt: Attempt, strategy: LoadStrategy) -> UpdateReport:
        """Hold every byte in host memory, let the source go, and only then pause."""
        update = attempt.update
        async with self._staging.turn(), AsyncExitStack() as held:
            held.enter_context(self._reserve.lent())
            attempt.enter(Phase.STAGING)
            async with opened(strategy, update, self._placement) as stage:
                with rejecting(f"staging {words_of(update.source)!r}"):
                    plan = await self._plan(stage, update)
                    writing: Writing | None = await self._sparse(attempt, stage, plan)
                    if writing is None:
                        transaction = await held.enter_async_context(
                            Transaction(self._engine, plan, mode=LoadMode.STAGED)
                        )
                        attempt.fill(plan, transaction)
                        await _stage_everything(transaction, plan, Buckets(stage))
                        writing = transaction
            attempt.staged = time.perf_counter()
            return await self._change_weights(attempt, plan, writing)

    async def _sparse(self, attempt: Attempt, stage: Stage, plan: Plan) -> SparseTransaction | None:
        """What brings only the changes into the weights; None when everything is loaded."""
        attempt.origin = origin_of_stage(stage)
        if attempt.whole or self._machine.facts.weights is not Weights.WHOLE:
            return None
        if attempt.update.scope is not Scope.FULL:
            return None
        found = await stage_sparse(self._engine, stage, plan, live=self._live, stamp=self.stamp)
        if found is not None:
            attempt.fill(plan, found)
        return found

    async def _run_resident(self, attempt: Attempt, strategy: LoadStrategy) -> UpdateReport:
        """Write out of the source itself, and let it go afterwards: the only copy that is made
        is the one into the weights. Staged, the source is memory already, which outlives the
        commit; *direct*, buckets are written as they come."""
        update = attempt.update
        report: UpdateReport | None = None
        try:
            async with opened(strategy, update, self._placement) as stage:
                buckets = Buckets(stage)
                with rejecting(f"planning {words_of(update.source)!r}"):
                    plan = await self._plan(stage, update)
                    sparse = await self._sparse(attempt, stage, plan)
                if sparse is not None:
                    attempt.staged = time.perf_counter()
                    report = await self._change_weights(attempt, plan, sparse)
                else:
                    report = await self._write_resident(attempt, plan, buckets)
        except UpdateRejected:
            if report is None:
                raise
            _log.exception(
                "the weights of %r are live, but it was not released", words_of(update.source)
            )
        return report

    async def _write_resident(self, attempt: Attempt, plan: Plan, buckets: Buckets) -> UpdateReport:
        mode = attempt.update.mode
        direct = mode is LoadMode.DIRECT
        async with AsyncExitStack() as held:
            gathering = held.enter_context(Gathering(buckets, plan.specs))
            transaction = await held.enter_async_context(
                Transaction(self._engine, plan, mode=mode, resident=not direct)
            )
            attempt.fill(plan, transaction)
            if not direct:
                attempt.enter(Phase.STAGING)
                await _stage_everything(transaction, plan, gathering)
            else:
                # Requests would wait for it, and what is found after a write cannot be undone.
                with rejecting(f"checking {words_of(attempt.update.source)!r}"):
                    await buckets.check()
            attempt.staged = time.perf_counter()
            return await self._change_weights(
                attempt, plan, transaction, buckets if direct else None
            )

    async def _plan(self, stage: Stage, update: Update) -> Plan:
        return await on_worker_thread(self._engine.plan, stage.manifest, update.scope)

    async def _change_weights(
        self,
        attempt: Attempt,
        plan: Plan,
        transaction: Writing,
        direct: Buckets | None = None,
    ) -> UpdateReport:
        """Take a turn in the queue, stop the engine, write, let the engine go on."""
        attempt.enter(Phase.QUEUED)
        with await self._queue.enter(attempt.command):
            self._check_epoch(attempt.update)
            if isinstance(transaction, SparseTransaction) and not self._live.is_still(
                transaction.live, self.stamp
            ):
                _log.info("%s: the weights have changed meanwhile; everything is loaded", attempt)
                raise _Outdated
            attempt.enter(Phase.COMMITTING)
            now = self._situation(attempt.update, plan)
            attempt.command = update_command(self._machine.facts)
            self._machine.begin(attempt.command, now)
            try:
                await self._stop(attempt)
                if direct is not None:
                    with rejecting(f"reading {words_of(attempt.update.source)!r}"):
                        await direct.peek()
                await checkpoint_if_cancelled()
            except BaseException:
                await uninterrupted(self._settle(Outcome.UNDONE, now))
                raise
            return await uninterrupted(self._write(attempt, plan, transaction, direct, now))

    def _check_epoch(self, update: Update) -> None:
        if update.only_epoch not in (None, self.stamp.epoch):
            raise UpdateRejected(
                f"the weights are those of epoch {self.stamp.epoch} by now, wanted the "
                f"{update.only_epoch} that this update was decided on; look, and send it again"
            )

    async def _stop(self, attempt: Attempt) -> None:
        """Stop the engine if it runs, and meet requests in flight as the update asks."""
        attempt.stopped = time.perf_counter()
        gate, wanted = self._machine.facts.gate, attempt.update.pause_mode
        if attempt.command is Command.SWAP:
            pause = await self._pause(wanted or PauseMode.RETRACT)
            attempt.stopped, attempt.num_aborted = pause.since, pause.num_aborted
        elif wanted is not None and wanted.strength > (gate or PauseMode.IN_PLACE).strength:
            # Paused already, with requests frozen that this update is asked to drop.
            attempt.num_aborted = (await self._pause(wanted)).num_aborted
        attempt.num_paused = self._engine.in_flight.total

    async def _pause(self, mode: PauseMode) -> EnginePause:
        self._stopping = mode
        try:
            with rejecting(f"pausing the engine with mode {mode}"):
                return await self._engine.pause(mode)
        finally:
            self._stopping = None

    async def hurry(self, mode: PauseMode) -> int:
        """End the drain of a swap that waits for requests, if ``mode`` is stronger.

        The swap then goes on. Returns how many requests that aborted.
        """
        if self._stopping is None or mode.strength <= self._stopping.strength:
            return 0
        # The swap is the one that resumes; whoever asked has still to pause for itself.
        with contained("the engine"):
            return (await self._engine.pause(mode)).num_aborted

    async def _write(
        self,
        attempt: Attempt,
        plan: Plan,
        transaction: Writing,
        direct: Buckets | None,
        now: Situation,
    ) -> UpdateReport:
        """First write to resume. Runs in a task of its own: nobody cancels it."""
        stamp = self._next_stamp(attempt.update)
        outcome = Outcome.TORN
        try:
            with self._window.open():
                await write_everything(transaction, stamp, direct=direct)
            if attempt.update.flush_cache:
                attempt.entries_cleared = await flush_after_commit(self._engine)
            outcome = Outcome.DONE
            attempt.outcome = str(transaction.outcome)
            self.stamp = stamp
        except Exception as error:
            outcome = outcome_after(error)
            raise
        finally:
            self._count(attempt.update, plan, outcome)
            self._remember(attempt, plan, transaction, outcome)
            await self._settle(outcome, now)
        self.last_report = attempt.result = attempt.report(plan, stamp)
        return self.last_report

    async def _settle(self, outcome: Outcome, now: Situation) -> None:
        self._machine.finish(outcome, now)
        await reconcile(self._engine, self._machine)

    def _count(self, update: Update, plan: Plan, outcome: Outcome) -> None:
        if outcome is Outcome.DONE and update.chunk:
            self.coverage.add(plan, version=update.version, mark=mark_of(update))
        elif outcome is Outcome.DONE and update.scope is Scope.FULL:
            self.coverage.clear()

    def _remember(
        self, attempt: Attempt, plan: Plan, transaction: Writing, outcome: Outcome
    ) -> None:
        """Where the weights come from now."""
        if outcome is Outcome.DONE and attempt.update.scope is Scope.FULL:
            self._live.adopt(attempt.origin, plan, epoch=self.stamp.epoch)
        elif transaction.touched or outcome is Outcome.TORN:
            self._live.forget()
        if outcome is Outcome.DONE and isinstance(transaction, SparseTransaction):
            PATCHES.forget(transaction.patches)

    def _situation(self, update: Update, plan: Plan | None = None) -> Situation:
        in_flight = self._engine.in_flight
        full = update.scope is Scope.FULL
        if update.chunk and plan is not None:
            full = self.coverage.completed_by(plan, version=update.version)
        return Situation(
            in_flight=in_flight.total,
            holding_kv=in_flight.holding_kv,
            pauses_itself=update.pause_mode is not None,
            full_coverage=full,
            chunk=update.chunk,
        )

    def _next_stamp(self, update: Update) -> WeightStamp:
        last = self.stamp
        return WeightStamp(
            version=last.version if update.version is None else update.version,
            token_step=last.token_step if update.token_step is None else update.token_step,
            update_count=last.update_count + 1,
            epoch=last.epoch + 1,
        )


async def _stage_everything(
    transaction: Transaction, plan: Plan, buckets: Buckets | Gathering
) -> None:
    while (bucket := await buckets.next()) is not None:
        await transaction.write(bucket)
    if transaction.tensors_applied < len(plan.specs):
        # Found now rather than at the commit, where requests would have paid for it.
        raise UpdateRejected(
            f"the source delivered {transaction.tensors_applied} of {len(plan.specs)} tensors "
            "that its manifest names; nothing was written, send a whole one"
        )
