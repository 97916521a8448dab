"""A server for a follower: it takes what it is told from the disk, and holds no weights."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hotswap.attempt import Phase, UpdateNews
from hotswap.errors import UpdateRejected
from hotswap.follow.strategy import FOLLOW, mark_of
from hotswap.sparse.origin import Origin
from hotswap.stream.errors import NotPulled
from hotswap.stream.log import holding_in
from hotswap.testing.fake_commands import FakeCommands
from hotswap.types import Update, UpdateReport

__all__ = ["FakeFollowed"]


@dataclass(slots=True, kw_only=True)
class FakeFollowed(FakeCommands):
    """As ``FakeCommands``; it tells its observers of updates, and from which bytes they were."""

    async def update(self, update: Update) -> UpdateReport:
        """Commit what the directory holds. Raises: ``refusal``, NotPulled, UpdateRejected."""
        if update.only_epoch not in (None, self.stamp.epoch):
            raise UpdateRejected("decided on other weights")
        origin = _origin_of(Path(update.source))
        if update.strategy == FOLLOW:
            wanted = mark_of(update)
            if origin is None or origin.version != wanted.version:
                raise NotPulled(f"{update.source} holds {origin}, wanted {wanted}")
        report = await FakeCommands.update(self, update)
        news = UpdateNews(
            number=len(self.received),
            update=update,
            phase=Phase.COMMITTING,
            outcome="committed",
            report=report,
            origin=origin,
        )
        for observer in self.observers:
            observer(news)
        return report


def _origin_of(directory: Path) -> Origin | None:
    held = holding_in(directory)
    if held is None:
        return None
    return Origin(
        directory=os.path.realpath(directory),
        version=held.state.number,
        index_digest=held.state.index_digest,
        state_digest=held.digest,
        files=(),
    )
