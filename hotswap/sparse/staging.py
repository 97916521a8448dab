"""Whether an update can be sparse, and everything about it that happens while serving."""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol, runtime_checkable

from hotswap.foreign import contained, said
from hotswap.seams import Engine, Patchable, Plan, Stage, Traced
from hotswap.sparse.cache import PATCHES, PatchCache
from hotswap.sparse.commit import SparseTransaction
from hotswap.sparse.live import NotExact, live_changes
from hotswap.sparse.live_origin import LiveOrigin
from hotswap.sparse.origin import Base, Origin
from hotswap.sparse.patch import Patch, merged
from hotswap.sparse.scatter import LiveChanges
from hotswap.types import WeightStamp
from hotswap.uninterrupted import on_worker_thread
from hotswap.weights.plan import TargetPlan

__all__ = ["Changes", "origin_of_stage", "stage_sparse"]

_log = logging.getLogger("hotswap.update")


@runtime_checkable
class Changes(Protocol):
    """How what a stage has came about: what led to it, version by version."""

    def keep_since(self, live: Origin | Base, patches: PatchCache) -> bool:
        """Leave in ``patches`` what leads from ``live`` to it; False when nothing does. Blocks."""
        ...


def origin_of_stage(stage: Stage) -> Origin | None:
    """Which bytes ``stage`` has; None for one that does not know."""
    origin = stage.origin if isinstance(stage, Traced) else None
    return origin if isinstance(origin, Origin) else None


async def stage_sparse(
    engine: Engine, stage: Stage, plan: Plan, *, live: LiveOrigin, stamp: WeightStamp
) -> SparseTransaction | None:
    """The changes that make live weights those of ``stage``, ready to be written; None when it
    takes a load of everything. Raises nothing but cancellation."""
    wanted, begin = origin_of_stage(stage), live.of(stamp, plan)
    if wanted is None or begin is None or not isinstance(plan, TargetPlan):
        return None
    if not isinstance(engine, Patchable):
        return None
    patches = PATCHES.way(begin, wanted) or await _remembered(stage, begin, wanted)
    if patches is None:
        _log.info("everything is loaded: no pull was kept that leads from %s to %s", begin, wanted)
        return None

    def make() -> LiveChanges:
        return live_changes(plan, merged(patches))

    try:
        changes = await on_worker_thread(make)
        with contained("the engine"):
            for look in changes.looks():
                await engine.look(look)
    except NotExact as reason:
        _log.info("everything is loaded: %s", reason)
        return None
    except Exception as error:
        # Nothing has been touched, and there is another way.
        _log.warning("everything is loaded: %s", said(error))
        return None
    return SparseTransaction(engine, plan, changes, live=begin, patches=patches, before=stamp)


async def _remembered(
    stage: Stage, begin: Origin | Base, wanted: Origin
) -> tuple[Patch, ...] | None:
    """From the stage's own memory of what led to it."""
    changes = getattr(stage, "changes", None)
    if not isinstance(changes, Changes):
        return None
    try:
        await on_worker_thread(partial(changes.keep_since, begin, PATCHES))
    except Exception as error:
        # A load of everything reads the same, and says what is wrong with it.
        _log.warning("everything is loaded: %s", said(error))
        return None
    return PATCHES.way(begin, wanted)
