"""How a follower stands, as values: for people, programs and metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from hotswap.follow.seen import Behind

__all__ = ["FollowState", "FollowStatus"]


_NOT_BEHIND = Behind()


class FollowState(StrEnum):
    """What a follower is doing, or waits for.

    ``looking``: nothing is known of the source yet. ``pulling``, ``committing``: it is at it.
    ``waiting``: a version is pulled that somebody has to commit. ``current``: the newest is live.
    ``displaced``: somebody else has put weights there, or another label. ``failing``: it tries
    again by itself; the reason says what went wrong.
    """

    LOOKING = "looking"
    PULLING = "pulling"
    COMMITTING = "committing"
    WAITING = "waiting"
    CURRENT = "current"
    DISPLACED = "displaced"
    FAILING = "failing"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowStatus:
    """One moment. Versions are None while they are not known; ``live`` also where the weights
    are not the stream's, or not whole. ``behind`` counts from the last version of the stream that
    was live. ``reached``: whether the server may be ready, as far as the follower goes.
    ``failures`` are tries that failed since the start, ``kind`` is the class of the last error
    while it matters.
    """

    source: str
    local: str
    commit: str
    state: FollowState = FollowState.LOOKING
    reason: str | None = None
    kind: str | None = None
    newest: int | None = None
    pulled: int | None = None
    live: int | None = None
    target: int | None = None
    behind: Behind = _NOT_BEHIND
    is_displaced: bool = False
    reached: bool = False
    ready_version: int | None = None
    looks: int = 0
    failures: int = 0

    @property
    def seconds_behind(self) -> float:
        """Since the first version was seen that is newer than what is live; 0 when none is."""
        since = self.behind.since
        return 0.0 if since is None else max(0.0, time.monotonic() - since)

    def is_as(self, other: FollowStatus) -> bool:
        """Whether nothing has changed that is worth a word, since ``other``."""
        return self._told == other._told

    @property
    def _told(self) -> tuple[object, ...]:
        numbers = self.newest, self.pulled, self.live, self.target
        return self.state, self.kind, self.is_displaced, self.reached, *numbers

    def fields(self) -> dict[str, object]:
        """As JSON types."""
        return {
            "source": self.source,
            "local": self.local,
            "commit": self.commit,
            "state": self.state,
            "reason": self.reason,
            "newest_version": self.newest,
            "pulled_version": self.pulled,
            "live_version": self.live,
            "target_version": self.target,
            "versions_behind": self.behind.versions,
            "bytes_behind": self.behind.size_bytes,
            "seconds_behind": self.seconds_behind,
            "displaced": self.is_displaced,
            "reached": self.reached,
            "ready_version": self.ready_version,
            "looks": self.looks,
            "failures": self.failures,
        }

    def __str__(self) -> str:
        names = (("live", self.live), ("pulled", self.pulled), ("newest", self.newest))
        told = ", ".join(f"{name} {'-' if number is None else number}" for name, number in names)
        doing = f" {self.target}" if self.target is not None else ""
        why = "" if self.reason is None else f": {self.reason}"
        return f"{self.state}{doing} ({told}){why}"
