"""A commit that writes only what has changed, and puts it back when it fails.

Rule: either everything is written and committed, or the weights are what they were and go on
under their old stamp; only when that fails too are they not whole.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio
import anyio.lowlevel

from hotswap.errors import UpdateFailed, UpdateRolledBack
from hotswap.foreign import contained, said
from hotswap.seams import Patchable, Plan
from hotswap.sparse.origin import Base, Origin
from hotswap.sparse.patch import Patch
from hotswap.sparse.scatter import LiveChanges
from hotswap.transaction import TransactionOutcome
from hotswap.types import WeightStamp

__all__ = ["SparseTransaction"]

_log = logging.getLogger("hotswap.update")


class SparseTransaction:
    """Brings live weights from ``live`` to where ``patches`` lead. Event-loop thread.

    ``changes`` are staged: what is there now has been remembered. ``before`` is the stamp of
    the weights that it was remembered of.
    """

    def __init__(
        self,
        engine: Patchable,
        plan: Plan,
        changes: LiveChanges,
        *,
        live: Origin | Base,
        patches: Sequence[Patch],
        before: WeightStamp,
    ) -> None:
        self.changes = changes
        self.live = live
        self.patches: tuple[Patch, ...] = tuple(patches)
        self.before = before
        self._engine = engine
        self._plan = plan
        self._outcome = TransactionOutcome.OPEN
        self._touched = False

    def __repr__(self) -> str:
        return f"<SparseTransaction {self._outcome} {self.changes!r}>"

    @property
    def outcome(self) -> TransactionOutcome:
        """How it stands, or how it ended."""
        return self._outcome

    @property
    def touched(self) -> bool:
        """Whether live weights were written."""
        return self._touched

    @property
    def held_so_far(self) -> tuple[int, int]:
        """As ``Transaction.held_so_far``: all that the plan names is at hand."""
        sizes = [spec.size_bytes for spec in self._plan.specs.values()]
        return len(sizes), sum(sizes)

    async def commit(self, stamp: WeightStamp) -> None:
        """Write the changes, under ``stamp``. Not cancellable from the first write on.

        Raises: UpdateRolledBack (the weights are as before), UpdateFailed (not whole).
        """
        if self._outcome is not TransactionOutcome.OPEN:
            raise RuntimeError(f"{self!r} has ended; begin a new transaction")
        await anyio.lowlevel.checkpoint_if_cancelled()
        try:
            with anyio.CancelScope(shield=True):
                await self._commit(stamp)
        finally:
            # Whatever ended it half way (an event loop that dies): not whole.
            if self._outcome is TransactionOutcome.OPEN:
                self._outcome = TransactionOutcome.FAILED

    async def _commit(self, stamp: WeightStamp) -> None:
        self._touched = True
        try:
            with contained("the engine"):
                await self._engine.patch(self._plan, self.changes.writes())
                await self._engine.commit(stamp)
        except Exception as error:
            await self._undo(error)
            raise UpdateRolledBack(
                f"the sparse update failed while the live weights were being written "
                f"({said(error)}); every element was put back, and the weights "
                "are what they were: send the update again, which then loads everything"
            ) from error
        self._outcome = TransactionOutcome.COMMITTED

    async def _undo(self, error: Exception) -> None:
        _log.warning("a sparse commit failed and is undone: %s", said(error))
        try:
            with contained("the engine"):
                await self._engine.patch(None, self.changes.undoing())
                await self._engine.commit(self.before)
        except Exception as again:
            self._outcome = TransactionOutcome.FAILED
            raise UpdateFailed(
                f"the sparse update failed while the live weights were being written "
                f"({said(again)}, after {said(error)} the first time); they are "
                "not whole: send a full update"
            ) from again
        self._outcome = TransactionOutcome.ROLLED_BACK
