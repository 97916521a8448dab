"""Which version of the stream is live, and whether anybody else has put his own there.

Rule: it is told by which bytes became live, and never by a label. Whoever changes the weights
another way, or calls them something else, has taken them over.
"""

from __future__ import annotations

import os
from pathlib import Path

from hotswap.attempt import UpdateNews
from hotswap.follow.mark import BOOT, VersionMark
from hotswap.state import Weights
from hotswap.types import Scope, WeightStamp

__all__ = ["LiveVersion"]


class LiveVersion:
    """What is live of the stream that is pulled into ``local``. Event-loop thread only."""

    def __init__(self, local: Path, stamp: WeightStamp) -> None:
        """``stamp`` is what the server has booted with: version 0."""
        self._local = os.path.realpath(local)
        self._stamp = stamp
        self.last: VersionMark = BOOT

    def __repr__(self) -> str:
        return f"<LiveVersion {self.last}, epoch {self._stamp.epoch}>"

    def note_update(self, news: UpdateNews) -> None:
        """An observer of updates: one from the followed directory brings its version."""
        origin, report = news.origin, news.report
        if report is None or origin is None or news.update.scope is not Scope.FULL:
            return
        if origin.directory == self._local:
            self._stamp, self.last = report.stamp, VersionMark.of(origin)

    def is_displaced(self, stamp: WeightStamp) -> bool:
        """Whether the weights of ``stamp`` are, or are called, somebody else's."""
        return stamp != self._stamp

    def mark(self, stamp: WeightStamp, weights: Weights) -> VersionMark | None:
        """What is live; None for weights that are not whole, or not the stream's."""
        if weights is not Weights.WHOLE or self.is_displaced(stamp):
            return None
        return self.last
