"""The load strategy of commits: the followed directory, only while it holds what is meant.

Rules:

* Somebody else may pull into the directory too (another server of this host), so that what it
  holds is looked at under its lock, and bytes and label of a commit always agree.
* What such a pull has changed is found out where it can be, so that the commit is sparse.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hotswap.errors import UpdateRejected
from hotswap.follow.mark import VersionMark
from hotswap.follow.taken_back import TakenBack
from hotswap.seams import LoadStrategy, Stage
from hotswap.sparse.cache import PatchCache
from hotswap.sparse.origin import Base, Origin
from hotswap.sparse.staging import origin_of_stage
from hotswap.stream.errors import NotPulled
from hotswap.stream.place import Place
from hotswap.types import Placement, Update
from hotswap.uninterrupted import on_worker_thread
from hotswap.weights.checkpoint import Checkpoint

__all__ = ["FOLLOW", "FollowStrategy", "mark_of", "options_of", "with_follow"]

FOLLOW = "follow"
"""What the strategy is called in updates, events and metrics; no client can ask for it."""

_DISK = "disk"


class FollowStrategy:
    """Reads the followed directory through ``disk``, the strategy of local checkpoints."""

    def __init__(self, disk: LoadStrategy, *, source: Place | None = None) -> None:
        """``source`` is what the directory is pulled from."""
        self._disk = disk
        self._back = TakenBack(source) if isinstance(source, Path) else None

    def __repr__(self) -> str:
        return f"<FollowStrategy by {self._disk!r}>"

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        """Open the copy for as long as the context lasts; every rank reads all of it.

        Raises: NotPulled when it holds another version by now, what ``disk`` raises.
        """
        wanted = mark_of(update)
        copy = replace(update, strategy=_DISK, options={})
        async with self._disk.open(copy, placement) as stage:
            origin = origin_of_stage(stage)
            if origin is None or VersionMark.of(origin) != wanted:
                held = "no version that a pull left" if origin is None else f"{origin}"
                raise NotPulled(
                    f"{update.source}: holds {held} by now, wanted {wanted}; commit what it holds"
                )
            if self._back is not None and isinstance(stage, Checkpoint) and stage.changes is None:
                await on_worker_thread(self._back.note, origin)
                stage.changes = _SharedChanges(self._back, origin)
            yield stage


@dataclass(frozen=True, slots=True)
class _SharedChanges:
    """As of ``hotswap.sparse.staging``."""

    back: TakenBack
    origin: Origin

    def keep_since(self, live: Origin | Base, patches: PatchCache) -> bool:
        return self.back.keep_since(live, self.origin, patches)


def options_of(mark: VersionMark) -> dict[str, object]:
    """What the update of a commit carries."""
    return {"version": mark.version, "index_digest": mark.index_digest}


def mark_of(update: Update) -> VersionMark:
    """Which version the update of a commit is about."""
    version, digest = update.options["version"], update.options["index_digest"]
    assert isinstance(version, int)
    return VersionMark(version=version, index_digest=None if digest is None else str(digest))


def with_follow(
    strategies: Mapping[str, LoadStrategy], *, source: Place | None = None
) -> dict[str, LoadStrategy]:
    """``strategies`` and the one of the commits of a follower of ``source``.

    Raises: UpdateRejected when nothing reads local checkpoints.
    """
    disk = strategies.get(_DISK)
    if disk is None:
        raise UpdateRejected(
            "what is followed is read by the strategy 'disk', which is not installed: pip install "
            "hotswap-disk, then start the server again"
        )
    return {**strategies, FOLLOW: FollowStrategy(disk, source=source)}
