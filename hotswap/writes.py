"""Every write of one update, from the first to the commit, and what a failure means."""

from __future__ import annotations

from typing import TypeAlias

from hotswap.errors import UpdateFailed, UpdateRejected, UpdateRolledBack
from hotswap.fetch import Buckets, rejection
from hotswap.foreign import contained, said
from hotswap.seams import Engine
from hotswap.sparse.commit import SparseTransaction
from hotswap.state import Outcome
from hotswap.transaction import Transaction
from hotswap.types import WeightStamp

__all__ = ["Writing", "flush_after_commit", "outcome_after", "write_everything"]

Writing: TypeAlias = Transaction | SparseTransaction
"""What brings an update into the live weights: all of it, or what has changed."""


async def write_everything(
    transaction: Writing, stamp: WeightStamp, *, direct: Buckets | None
) -> None:
    """Write the buckets of ``direct`` as they come (staged ones are in the transaction
    already), then commit.

    Raises: UpdateRejected (untouched), UpdateRolledBack (as before), UpdateFailed (torn);
    a rejection that comes after a direct write is a failure.
    """
    try:
        with contained("the update"):
            if isinstance(transaction, Transaction):
                while direct is not None and (bucket := await direct.next()) is not None:
                    await transaction.write(bucket)
            await transaction.commit(stamp)
    except (UpdateFailed, UpdateRolledBack):
        raise
    except Exception as error:
        if not transaction.touched:
            if isinstance(error, UpdateRejected):
                raise
            raise rejection("reading the source", error) from error
        raise UpdateFailed(
            f"writing the weights failed half way with {said(error)}; "
            "they are not whole, send a full update"
        ) from error


async def flush_after_commit(engine: Engine) -> int:
    """Drop cached prefixes of the old weights; how many went.

    Raises: UpdateFailed when the engine cannot: the prefixes may be served on with
    the new weights, which is as bad as mixed weights.
    """
    try:
        with contained("the engine"):
            return await engine.flush()
    except Exception as error:
        raise UpdateFailed(
            f"the weights were written, but flushing the cache failed with "
            f"{said(error)}; nothing is generated until a full update"
        ) from error


def outcome_after(error: BaseException) -> Outcome:
    """What ``write_everything`` left of the weights when it raised ``error``."""
    untouched = isinstance(error, UpdateRejected | UpdateRolledBack)
    return Outcome.UNDONE if untouched else Outcome.TORN
