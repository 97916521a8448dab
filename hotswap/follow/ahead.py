"""Pulls ahead: what is published is looked at, and the newest that can be is pulled.

Rules:

* A version that cannot be pulled is tried again later; an older one is pulled meanwhile.
* What concerns the source or the disk as a whole is raised: no other version would do better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from hotswap.follow.backoff import Backoff
from hotswap.follow.mark import VersionMark, mark_in
from hotswap.follow.options import FollowOptions
from hotswap.follow.seen import Seen, SourceWatch
from hotswap.follow.target import next_target
from hotswap.pulls import Puller
from hotswap.stream import errors
from hotswap.stream.state import Reserved
from hotswap.uninterrupted import on_worker_thread

__all__ = ["PullAhead"]

_OF_ONE_VERSION = (
    errors.SourceNotReady,
    errors.VersionMissing,
    errors.VersionMalformed,
    errors.DeltaDamaged,
    errors.UnknownEncoding,
    errors.OutOfOrder,
)
_TRIES = 4
"""So many versions may fail in one turn."""

_GONE_LOOKS = 3
"""A listing may lag, and one that is without a version once has not lost it."""

_MOST_TOLD = 16


@dataclass(slots=True, kw_only=True)
class _Trouble:
    """Why a version was not pulled, and when it may be tried again."""

    error: Exception
    backoff: Backoff
    due: float


class PullAhead:
    """Looks and pulls for one follower. Event-loop thread only, one turn at a time.

    ``seen`` is the last look, ``held`` what the local checkpoint holds of this stream. ``tell``
    hears which version is being pulled, and None when it is over.
    """

    def __init__(
        self,
        options: FollowOptions,
        *,
        puller: Puller,
        tell: Callable[[int | None], None] = lambda _target: None,
        watch: SourceWatch | None = None,
        backoff: Callable[[], Backoff] = Backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seen: Seen = Seen()
        self.held: VersionMark | None = None
        self._options = options
        self._puller = puller
        self._tell = tell
        self._watch = watch or SourceWatch(options.source)
        self._backoff = backoff
        self._clock = clock
        self._troubles: dict[int, _Trouble] = {}
        self._told: list[int] = []
        self._gone_looks = 0
        self._is_untouched = False

    def __repr__(self) -> str:
        return f"<PullAhead of {self._options.source}, holds {self.held or 'nothing'}>"

    def expect(self, version: int | None) -> None:
        """Somebody has said that ``version`` is there: look for it, and try again what failed."""
        for trouble in self._troubles.values():
            trouble.due = self._clock()
        if version is not None and version not in self._told:
            self._told = [*self._told[1 - _MOST_TOLD :], version]

    def trouble_with(self, version: int | None = None) -> Exception | None:
        """Why ``version``, or else the newest that failed and would be newer than what is held,
        was not pulled."""
        if version is None:
            least = -1 if self.held is None else self.held.version
            version = max((number for number in self._troubles if number > least), default=-1)
        found = self._troubles.get(version)
        return None if found is None else found.error

    def due_in_s(self) -> float | None:
        """Seconds until a version that failed may be tried again; None when none has."""
        due = min((trouble.due for trouble in self._troubles.values()), default=None)
        return None if due is None else max(0.0, due - self._clock())

    async def look(self, *, above: int) -> None:
        """See what is published. Raises: SourceNotReady, SourceUnusable."""
        self.seen = await on_worker_thread(
            partial(self._watch.look, above=above, told=tuple(self._told))
        )
        self._told = [number for number in self._told if number not in self.seen.listed]
        self._forget_but(self.seen.listed)

    async def pull(self, wish: Callable[[], int | None]) -> int:
        """Pull until there is nothing better; how many versions could not be pulled.

        ``wish`` is asked before each pull. Raises: StreamError, what is no version's fault.
        """
        await self.note_held()
        is_other_run = await on_worker_thread(self._is_other_run)
        failures = 0
        while failures < _TRIES:
            wanted = wish()
            target = next_target(
                self.seen,
                self.held,
                wish=wanted,
                failed=self._not_due(),
                is_other_run=is_other_run,
                is_untouched=self._is_untouched,
            )
            if target is None:
                break
            failures += not await self._pull(target)
            await self.note_held()
            is_other_run = False
        return failures

    async def note_held(self) -> None:
        """Look what the local checkpoint holds."""
        self.held = await on_worker_thread(self._hold)

    async def _pull(self, target: int) -> bool:
        """Whether it went well. Raises: as ``pull``."""
        self._tell(target)
        try:
            await self._puller.pull(str(self._options.local), str(self._options.source), target)
        except _OF_ONE_VERSION as error:
            self._note_trouble(target, error)
            return False
        finally:
            self._tell(None)
        self._troubles.pop(target, None)
        return True

    def _note_trouble(self, target: int, error: Exception) -> None:
        before = self._troubles.get(target)
        backoff = self._backoff() if before is None else before.backoff
        due = self._clock() + backoff.failed()
        self._troubles[target] = _Trouble(error=error, backoff=backoff, due=due)

    def _not_due(self) -> frozenset[int]:
        now = self._clock()
        return frozenset(number for number, one in self._troubles.items() if one.due > now)

    def _forget_but(self, listed: Iterable[int]) -> None:
        there = {0, *listed}
        self._troubles = {n: one for n, one in self._troubles.items() if n in there}

    def _hold(self) -> VersionMark | None:
        local, source = self._options.local, self._options.source
        mark = mark_in(local)
        paths = Reserved(local)
        self._is_untouched = not paths.state.exists() and not paths.is_pending
        if mark is None or not self._puller.holds(local, source, mark.version, looks=False):
            return None
        return mark

    def _is_other_run(self) -> bool:
        """Whether what is held is no part of what is published by now. Blocks."""
        held, newest = self.held, self.seen.newest
        if held is None or newest is None or not held.version or newest > held.version:
            self._gone_looks = 0
            return False
        if held.version in self.seen.listed:
            self._gone_looks = 0
            local, source = self._options.local, self._options.source
            return newest == held.version and not self._puller.holds(
                local, source, newest, looks=True
            )
        self._gone_looks += 1
        return self._gone_looks >= _GONE_LOOKS
