"""Commits that somebody asks for: of what is pulled, or of a version to be waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from hotswap.follow.ahead import PullAhead
from hotswap.follow.mark import VersionMark
from hotswap.follow.turns import Turns
from hotswap.stream.errors import NotPulled, SourceNotReady, StreamError
from hotswap.types import UpdateReport

__all__ = ["Commit", "CommitWhenTold"]

Commit = Callable[[VersionMark], Awaitable[UpdateReport | None]]
"""Commits what is held; None when it is live already."""

_OTHERS_S = 30.0
"""How long another commit is waited for, or a look at the disk, whatever was asked."""


class CommitWhenTold:
    """Serves everybody who asks one follower for a commit. Event-loop thread only."""

    def __init__(
        self,
        ahead: PullAhead,
        turns: Turns,
        *,
        hands_on: anyio.Lock,
        nudge: Callable[[int | None], None],
        pulling: Callable[[], int | None],
        failure: Callable[[], Exception | None],
    ) -> None:
        """``hands_on`` is held by who pulls or commits, ``pulling`` says which version it is,
        ``nudge`` begins a turn at once, ``failure`` is why the last one was none."""
        self._ahead = ahead
        self._turns = turns
        self._hands_on = hands_on
        self._nudge = nudge
        self._pulling = pulling
        self._failure = failure
        self._wishes: list[int] = []

    def __repr__(self) -> str:
        return f"<CommitWhenTold {len(self._wishes)} waiting>"

    @property
    def wish(self) -> int | None:
        """The version that the last of those who wait wants; None when nobody waits for one."""
        return self._wishes[-1] if self._wishes else None

    async def commit(
        self, version: int | None, commit: Commit, *, wait_s: float
    ) -> UpdateReport | None:
        """Commit ``version``, or whatever is held; None when it is live already.

        With ``wait_s`` a version that is not held is pulled first; without a version the source
        is looked at once more. Raises: NotPulled, SourceNotReady, what ``commit`` raises.
        """
        until = anyio.current_time() + wait_s
        with self._wished(version if wait_s > 0 else None):
            if wait_s > 0 and (version is None or not self._fits(version)):
                self._nudge(version)
                await self._turn(self._turns.begun + 1, until)
            while True:
                async with self._alone(until) as alone:
                    if alone and await self._holds(version):
                        assert self._ahead.held is not None
                        return await commit(self._ahead.held)
                if anyio.current_time() >= until:
                    raise self._why_not(version)
                await self._turn(self._turns.ended + 1, until)

    @contextmanager
    def _wished(self, version: int | None) -> Iterator[None]:
        if version is None:
            yield
            return
        self._wishes.append(version)
        try:
            yield
        finally:
            self._wishes.remove(version)

    @asynccontextmanager
    async def _alone(self, until: float) -> AsyncIterator[bool]:
        """With nobody else pulling or committing; False when a pull takes longer than that."""
        least = anyio.current_time() + _OTHERS_S if self._pulling() is None else until
        with anyio.CancelScope(deadline=max(until, least)) as waiting:
            await self._hands_on.acquire()
        if waiting.cancelled_caught:
            yield False
            return
        try:
            yield True
        finally:
            self._hands_on.release()

    async def _turn(self, number: int, until: float) -> None:
        with anyio.CancelScope(deadline=until):
            await self._turns.until(number)

    async def _holds(self, version: int | None) -> bool:
        await self._ahead.note_held()
        return self._fits(version)

    def _fits(self, version: int | None) -> bool:
        held = self._ahead.held
        return held is not None and version in (None, held.version)

    def _why_not(self, version: int | None) -> StreamError:
        held, pulling = self._ahead.held, self._pulling()
        trouble = self._ahead.trouble_with(version) or self._failure()
        seen = f"the followed directory holds {held or 'no version'}"
        if pulling is not None:
            seen += f", and version {pulling} is being pulled"
        if trouble is not None:
            seen += f" ({trouble})"
        error: StreamError
        if version and version not in self._ahead.seen.listed:
            error = SourceNotReady(
                f"version {version} is not at the source (yet), and {seen}; publish it, or commit "
                "what is there"
            )
        else:
            wanted = "any version" if version is None else f"version {version}"
            error = NotPulled(
                f"{seen}, wanted {wanted}; commit what is there, or wait for a pull (wait_s, of "
                "hotswap commit --wait)"
            )
        error.local_version = None if held is None else held.version
        return error
