"""One update of the live weights: write buckets, then commit or abort.

Rules:

* What is delivered is what was planned: each name once, of the shape and dtype that
  the manifest promised, equal bytes for names that share live memory.
* *staged*: nothing live is written before ``commit``; a commit that fails once rolls
  forward by writing everything again. *direct*: each bucket is written at once, and
  nothing can be undone.
* ``UpdateRejected`` means that no live weight was touched; ``UpdateFailed`` means
  that they are torn. Staging memory goes back when the block ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
import anyio.to_thread

from hotswap.errors import HotswapError, UpdateFailed, UpdateRejected
from hotswap.foreign import contained, is_ours, on_a_thread, said, words_of
from hotswap.seams import Engine, Plan
from hotswap.types import Bucket, LoadMode, Payload, WeightStamp, member
from hotswap.uninterrupted import own_threads
from hotswap.weights.delivery import Delivery
from hotswap.weights.plan import CheckedPlan
from hotswap.weights.staging import Staging
from hotswap.weights.ties import check_ties, reject_unequal

__all__ = ["Transaction", "TransactionOutcome"]

_log = logging.getLogger(__name__)


class TransactionOutcome(StrEnum):
    """How a transaction stands, or how it ended.

    ``aborted``: nothing live was touched. ``failed``: live weights are torn.
    ``rolled_back``: they were touched, and are what they were.
    """

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_FORWARD = "rolled_forward"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"
    ABORTED = "aborted"


class Transaction:
    """Fills ``engine`` with what ``plan`` announced. Event-loop thread, one call at a time.

    Use it as ``async with``: leaving the block aborts what was not committed and
    frees all staging memory. *staged* payloads are copied by ``write`` and may go
    when it returns; *direct* ones must stay valid until ``commit`` returns, and the
    engine must be paused from the first ``write`` on. Staged payloads that are ``resident``
    are not copied: they are memory, and must stay valid and unchanged until ``commit`` returns.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        *,
        mode: LoadMode = LoadMode.STAGED,
        resident: bool = False,
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._mode = member(LoadMode, mode, what="mode")
        self._resident = resident
        self._delivery = Delivery(plan)
        self._staging: Staging | None = None
        self._held: list[tuple[str, Payload]] = []
        self._outcome = TransactionOutcome.OPEN
        self._touched = False
        self._held_so_far = (0, 0)
        self._ties_checked = not self._delivery.ties

    def __repr__(self) -> str:
        return f"<Transaction {self._mode} {self._outcome} {self._delivery!r}>"

    @property
    def outcome(self) -> TransactionOutcome:
        """How it stands, or how it ended."""
        return self._outcome

    @property
    def touched(self) -> bool:
        """Whether live weights were written; once true, only a commit makes them whole."""
        return self._touched

    @property
    def tensors_applied(self) -> int:
        """Checkpoint tensors accepted so far; those skipped by rule do not count."""
        return self._delivery.arrived

    @property
    def bytes_applied(self) -> int:
        """Their bytes in the live dtype."""
        return self._delivery.arrived_bytes

    @property
    def staged(self) -> Mapping[str, Payload]:
        """What a commit would write by now, as the plan names it; valid until the end."""
        if self._staging is not None:
            return self._staging.tensors
        return {name: held for name, held in self._held if name not in self._delivery.copies}

    @property
    def held_so_far(self) -> tuple[int, int]:
        """Tensors and bytes of the buckets that are staged, or written: whole ones only."""
        return self._held_so_far

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    def abort(self) -> None:
        """Give up if still open, and free staging memory at once. Idempotent.

        Puts nothing back: a direct transaction that has written has failed.
        """
        if self._outcome is TransactionOutcome.OPEN:
            torn = self._touched
            self._outcome = TransactionOutcome.FAILED if torn else TransactionOutcome.ABORTED
        self._held.clear()
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.close()

    def forget(self, names: Iterable[str]) -> None:
        """Write these no more, which are staged: others have come in their place, elsewhere.
        Their memory goes back at once."""
        if self._staging is not None:
            self._staging.forget(names)

    async def write(self, bucket: Bucket) -> None:
        """Take a bucket: into staging memory, or (direct) into the live weights.

        Direct buckets wait in line while names that share live memory have not all
        come, so that a contradiction is found before the first write. Staged, it may
        be cancelled; the transaction is then aborted. Raises: UpdateRejected when the
        bucket or its source is wrong and nothing live was touched; UpdateFailed.
        """
        self._check_open()
        if self._mode is LoadMode.STAGED:
            await self._stage(bucket)
        else:
            try:
                await self._write_direct(bucket)
            except UpdateFailed:
                raise
            except Exception as error:
                if not self._touched:
                    raise
                raise self._failed(error) from error
        self._held_so_far = (self.tensors_applied, self.bytes_applied)

    async def commit(self, stamp: WeightStamp) -> None:
        """Make the live weights what was delivered, under ``stamp``.

        Not cancellable from the first write on. Raises: UpdateRejected when something
        is lacking and nothing live was touched; UpdateFailed.
        """
        self._check_open()
        try:
            self._delivery.check_complete()
        except UpdateRejected as error:
            if not self._touched:
                raise
            raise self._failed(error) from error
        await anyio.lowlevel.checkpoint_if_cancelled()
        try:
            with anyio.CancelScope(shield=True):
                if self._mode is LoadMode.STAGED:
                    await self._commit_staged(stamp)
                else:
                    await self._commit_direct(stamp)
        finally:
            # Whatever ended it half way (an event loop that dies): not whole.
            if self._outcome is TransactionOutcome.OPEN:
                self._outcome = TransactionOutcome.FAILED

    def _check_open(self) -> None:
        if self._outcome is not TransactionOutcome.OPEN:
            raise RuntimeError(f"{self!r} has ended; begin a new transaction")

    def _failed(self, error: Exception, *, before: str | None = None) -> UpdateFailed:
        self._outcome = TransactionOutcome.FAILED
        again = f", after {before} the first time" if before else ""
        return UpdateFailed(
            f"the {self._mode} update failed while the live weights were being written "
            f"({said(error)}{again}); they are not whole: send a full update"
        )

    async def _stage(self, bucket: Bucket) -> None:
        wanted = self._accept(bucket)
        try:
            if self._resident:
                self._held.extend(wanted)
                if not self._ties_checked and not self._delivery.awaits_ties:
                    await self._check_held_ties()
                return
            with _source_faults():
                if self._staging is None:
                    self._staging = Staging(self._plan.specs.values())
                await self._staging.fill(wanted, self._plan.specs)
                await self._check_ties(self._staging)
        except BaseException:
            self.abort()
            raise

    def _accept(self, bucket: Bucket) -> list[tuple[str, Payload]]:
        """Check and enter it: that runs whatever its payloads do when they are looked at."""
        with contained("a payload") if self._touched else _source_faults():
            return self._delivery.accept(bucket)

    async def _write_direct(self, bucket: Bucket) -> None:
        self._held.extend(self._accept(bucket))
        if self._delivery.awaits_ties:
            return
        if not self._ties_checked:
            await self._check_held_ties()
        wanted = [item for item in self._held if item[0] not in self._delivery.copies]
        self._held.clear()
        if wanted:
            await self._write_live(wanted)

    async def _write_live(self, bucket: Bucket) -> None:
        try:
            with anyio.CancelScope(shield=True), contained("the engine"):
                self._touched = True
                await self._engine.write(self._plan, bucket)
        except Exception as error:
            raise self._failed(error) from error

    async def _check_held_ties(self) -> None:
        with _source_faults():
            if isinstance(self._plan, CheckedPlan):
                await anyio.to_thread.run_sync(
                    on_a_thread, check_ties, self._plan, dict(self._held), limiter=own_threads()
                )
        self._ties_checked = True

    async def _check_ties(self, staging: Staging) -> None:
        """Once all tied names are there: compare them, and keep one of each group."""
        if self._ties_checked or self._delivery.awaits_ties:
            return
        for first, *others in self._delivery.ties:
            reject_unequal(first, await staging.unequal(first, others))
        staging.forget(self._delivery.copies)
        self._ties_checked = True

    async def _commit_staged(self, stamp: WeightStamp) -> None:
        bucket = list(self.staged.items())
        self._touched = True
        try:
            await self._apply(bucket, stamp)
        except Exception as error:
            first = said(error)
            _log.warning("commit failed and is rolled forward from staged bytes: %s", first)
        else:
            self._outcome = TransactionOutcome.COMMITTED
            return
        try:
            await self._apply(bucket, stamp)
        except Exception as error:
            raise self._failed(error, before=first) from error
        self._outcome = TransactionOutcome.ROLLED_FORWARD

    async def _apply(self, bucket: Bucket, stamp: WeightStamp) -> None:
        with contained("the engine"):
            await self._engine.write(self._plan, bucket)
            await self._engine.commit(stamp)

    async def _commit_direct(self, stamp: WeightStamp) -> None:
        try:
            with contained("the engine"):
                await self._engine.commit(stamp)
        except Exception as error:
            raise self._failed(error) from error
        self._outcome = TransactionOutcome.COMMITTED


@contextmanager
def _source_faults() -> Iterator[None]:
    """Turn what a source raises into UpdateRejected. Only while nothing live is touched."""
    try:
        yield
    except HotswapError:
        raise
    except MemoryError as error:
        raise UpdateRejected(
            f"the update does not fit into host memory ({words_of(error)}); nothing was touched: "
            "free memory, or load in direct mode"
        ) from error
    except BaseException as error:
        if is_ours(error):
            raise
        raise UpdateRejected(
            f"the source could not be read ({said(error)}); nothing was "
            "touched: repair it and send the update again"
        ) from error
