"""A follower of a small stream, on a server that holds no weights."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from hotswap.follow import CommitPace, FollowOptions, FollowStatus
from hotswap.follow.backoff import Backoff
from hotswap.follow.follower import Follower
from hotswap.pulls import Puller
from hotswap.stream.layout import directory_of
from hotswap.testing.fake_followed import FakeFollowed
from tests.unit.stream.streams import Stream, held_contents

__all__ = ["MANUAL", "Following", "damage", "following"]

MANUAL = CommitPace.MANUAL
LIMIT_S = 60.0
NEVER_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """``told``: every status that was worth a word."""

    stream: Stream
    follower: Follower
    server: FakeFollowed
    told: list[FollowStatus]

    @property
    def live(self) -> str | None:
        """The label that the server has."""
        return self.server.stamp.version

    async def look(self) -> FollowStatus:
        """One whole turn."""
        with anyio.fail_after(LIMIT_S):
            return await self.follower.look()

    async def until(self, holds: Callable[[FollowStatus], bool]) -> FollowStatus:
        """The status once it is so."""
        changed = anyio.Event()

        def note(status: FollowStatus) -> None:
            if holds(status):
                changed.set()

        self.follower.observe(note)
        note(self.follower.status)
        with anyio.fail_after(LIMIT_S):
            await changed.wait()
        return self.follower.status

    def holds(self, version: int) -> bool:
        """Whether the local checkpoint has the bytes of ``version``."""
        return held_contents(self.stream.local) == self.stream.at(version)


@asynccontextmanager
async def following(
    stream: Stream,
    *,
    pace: CommitPace = CommitPace.AUTO,
    server: FakeFollowed | None = None,
    interval_s: float = NEVER_S,
    retry_s: float = NEVER_S,
    puller: Puller | None = None,
    source: Path | None = None,
    **options: Any,
) -> AsyncIterator[Following]:
    """Follow ``stream``, turn by turn as the test asks, unless an interval is given."""
    told = FollowOptions(
        source=source or stream.source,
        local=stream.local,
        base=stream.base,
        pace=pace,
        interval_s=interval_s,
    )
    served = server or FakeFollowed()
    follower = Follower(
        dataclasses.replace(told, **options),
        puller=puller or Puller.from_options({"model": str(stream.base)}),
        server=served,
        backoff=lambda: Backoff(first_s=retry_s, longest_s=retry_s),
    )
    heard = list[FollowStatus]()
    follower.observe(heard.append)
    async with follower:
        yield Following(stream=stream, follower=follower, server=served, told=heard)


def damage(stream: Stream, version: int) -> Callable[[], None]:
    """Flip the last byte of a version's blobs; what puts it right."""
    (file,) = directory_of(stream.source, version).glob("*.safetensors")
    before = file.read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 255]))

    def mend() -> None:
        file.write_bytes(before)

    return mend
