"""``--follow``: keep a server at the newest version of a stream.

Rules:

* A turn looks at the source, pulls the newest version that can be pulled, and commits it where
  nobody else has to say so. Turns come at an interval, and at once when a version is announced:
  a notice only saves time, and one that was missed costs an interval.
* A commit is an update as any other. What is live and what is held is looked up, not remembered:
  a server that is started again goes on from its directory.
* Weights that somebody else has put there, or called something else, stay until a commit is
  asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

import anyio

from hotswap.attempt import UpdateNews
from hotswap.coverage import Coverage
from hotswap.errors import Busy, HotswapError
from hotswap.follow.ahead import PullAhead
from hotswap.follow.backoff import Backoff, jittered
from hotswap.follow.live import LiveVersion
from hotswap.follow.mark import VersionMark
from hotswap.follow.options import CommitPace, FollowOptions
from hotswap.follow.seen import SourceWatch
from hotswap.follow.status import FollowState, FollowStatus
from hotswap.follow.strategy import FOLLOW, options_of
from hotswap.follow.told import CommitWhenTold
from hotswap.follow.turns import Turns
from hotswap.pulls import Puller
from hotswap.state import Change, Machine
from hotswap.types import LoadMode, Update, UpdateReport, WeightStamp
from hotswap.update_session import Labels
from hotswap.update_sessions import UpdateSessions

__all__ = ["FollowedServer", "Follower"]

_log = logging.getLogger("hotswap.follow")

_TOLD_LOUDLY = (FollowState.FAILING, FollowState.DISPLACED)


class FollowedServer(Protocol):
    """What a follower needs of the controller."""

    @property
    def machine(self) -> Machine:
        """Facts and state."""
        ...

    @property
    def stamp(self) -> WeightStamp:
        """Which weights are live."""
        ...

    @property
    def coverage(self) -> Coverage:
        """How far the chunks of a push have come."""
        ...

    @property
    def sessions(self) -> UpdateSessions:
        """Chunks that are to become one update."""
        ...

    @property
    def updates(self) -> Sequence[object]:
        """Updates that are not over."""
        ...

    def observe_updates(self, observer: Callable[[UpdateNews], None]) -> None:
        """Call ``observer`` at every step of every update."""
        ...

    async def update(self, update: Update) -> UpdateReport:
        """Change the weights."""
        ...


class Follower:
    """Follows one source for one server. Event-loop thread only, but for ``status``.

    Enter it once the server has loaded what it was started with; leaving it ends a pull early
    and a commit in order.
    """

    def __init__(
        self,
        options: FollowOptions,
        *,
        puller: Puller,
        server: FollowedServer,
        load_mode: LoadMode = LoadMode.STAGED,
        watch: SourceWatch | None = None,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        """``server`` has the strategy ``follow`` among its own; its weights are version 0."""
        self.options: FollowOptions = options
        self.puller: Puller = puller
        self._server = server
        self._load_mode = load_mode
        self._ahead = PullAhead(
            options, puller=puller, tell=self._note_target, watch=watch, backoff=backoff
        )
        self._live = LiveVersion(options.local, server.stamp)
        self._backoff = backoff()
        self._retry_s: float | None = None
        self._failure: Exception | None = None
        self._target: int | None = None
        self._committing = False
        self._looks, self._failures = 0, 0
        self._reached = False
        self._stopping = False
        self._nudged = asyncio.Event()
        self._hands_on = anyio.Lock()
        self._turns = Turns()
        self._told = CommitWhenTold(
            self._ahead,
            self._turns,
            hands_on=self._hands_on,
            nudge=self.notice,
            pulling=lambda: self._target,
            failure=lambda: self._failure,
        )
        self._observers: list[Callable[[FollowStatus], None]] = []
        self._task: asyncio.Task[None] | None = None
        self.status: FollowStatus = self._now()
        server.observe_updates(self._on_update)
        server.machine.observe(self._on_change)

    def __repr__(self) -> str:
        return f"<Follower of {self.options.source} {self.status}>"

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._task is not None:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._task])

    def stop(self) -> None:
        """Take no further turn, and let a pull end early. Idempotent."""
        self._stopping = True
        self.puller.stop()
        if self._task is not None:
            self._task.cancel()

    def observe(self, observer: Callable[[FollowStatus], None]) -> None:
        """Call ``observer`` on the event loop whenever the status has changed."""
        self._observers.append(observer)

    def notice(self, version: int | None = None) -> None:
        """Somebody says that there is something new, as ``version``: look at once."""
        self._ahead.expect(version)
        self._nudged.set()

    async def look(self) -> FollowStatus:
        """Look at once; how things stand when that turn is over."""
        self.notice()
        await self._turns.until(self._turns.begun + 1)
        return self.status

    async def commit(
        self, version: int | None = None, *, labels: Labels | None = None, wait_s: float = 0.0
    ) -> UpdateReport | None:
        """Make what is pulled live: ``version``, or whatever it is; None when it is already.

        With ``wait_s`` a version that is not there is pulled first, one that is older too;
        without a version the source is looked at once more. Raises: NotPulled,
        SourceNotReady; what an update raises.
        """
        said = labels or Labels(flush_cache=True)

        async def commit(held: VersionMark) -> UpdateReport | None:
            # A version that is live under another label has been displaced.
            return None if held == self._mark else await self._commit(held, said)

        try:
            return await self._told.commit(version, commit, wait_s=wait_s)
        finally:
            self._refresh()

    async def _run(self) -> None:
        while not self._stopping:
            self._nudged.clear()
            with self._turns.one():
                await self._turn()
            if self._stopping:
                # A pull that was given up has raised that, and no cancellation.
                break
            with anyio.move_on_after(self._pause_s()):
                await self._nudged.wait()

    async def _turn(self) -> None:
        failure: Exception | None = None
        # With a version that was named it goes no further by itself than that.
        self._reached = self._reached or self._has_reached(None, looked=False)
        for step in (self._catch_up, self._commit_if_due):
            try:
                await step()
            except Exception as error:
                if self._stopping:
                    return
                if not isinstance(error, HotswapError | OSError):
                    _log.exception("following %s failed", self.options.source)
                self._failures += 1
                failure = failure or error
        self._failure = failure
        if failure is None:
            self._backoff.succeeded()
            self._retry_s = None
        else:
            self._retry_s = self._backoff.failed()
        self._reached = self._reached or self._has_reached(failure, looked=True)
        self._refresh()

    async def _catch_up(self) -> None:
        live = self._mark
        # What is there may be committed although the source is away.
        await self._ahead.note_held()
        await self._ahead.look(above=self._live.last.version if live is None else live.version)
        self._looks += 1
        async with self._hands_on:
            self._failures += await self._ahead.pull(lambda: self._told.wish)

    async def _commit_if_due(self) -> None:
        if not self._is_due():
            return
        async with self._hands_on:
            held = self._ahead.held
            if held is not None and self._is_due():
                epoch = self._server.stamp.epoch
                said = Labels(flush_cache=True, pause_mode=self.options.pause_mode)
                await self._commit(held, said, only_epoch=epoch)

    def _is_due(self) -> bool:
        """Whether what is held is to become live without a word from anybody."""
        held, server = self._ahead.held, self._server
        if held is None or held == self._mark or self._told.wish is not None:
            return False
        if not server.machine.facts.weights.resident:
            # Somebody else has their memory, and gives it back.
            return False
        if self.options.pace is CommitPace.MANUAL and self._reached:
            return False
        if self._live.is_displaced(server.stamp) or server.coverage.begun or server.updates:
            # Not between the chunks of a push, nor in the place of what somebody else brings.
            return False
        try:
            server.sessions.refuse_others()
        except Busy:
            return False
        return True

    async def _commit(
        self, held: VersionMark, said: Labels, *, only_epoch: int | None = None
    ) -> UpdateReport:
        self._committing = True
        self._refresh()
        try:
            return await self._server.update(
                Update(
                    source=str(self.options.local),
                    strategy=FOLLOW,
                    mode=self._load_mode,
                    version=str(held.version) if said.version is None else said.version,
                    token_step=said.token_step,
                    flush_cache=said.flush_cache,
                    pause_mode=said.pause_mode,
                    options=options_of(held),
                    only_epoch=only_epoch,
                )
            )
        finally:
            self._committing = False

    @property
    def _mark(self) -> VersionMark | None:
        """What is live of the stream."""
        return self._live.mark(self._server.stamp, self._server.machine.facts.weights)

    def _has_reached(self, failure: Exception | None, *, looked: bool) -> bool:
        live, wanted = self._mark, self.options.ready_version
        if live is None:
            return False
        if wanted is not None:
            return live.version >= wanted
        return looked and failure is None and live == self._ahead.held

    def _pause_s(self) -> float:
        """Until the next turn: the interval, or as long as what failed is left alone."""
        if self._retry_s is not None:
            return self._retry_s
        pause, due = jittered(self.options.interval_s), self._ahead.due_in_s()
        return pause if due is None else min(pause, due)

    def _on_update(self, news: UpdateNews) -> None:
        self._live.note_update(news)
        if news.outcome is not None and news.update.strategy != FOLLOW:
            self._refresh()
            self._nudged.set()

    def _on_change(self, change: Change) -> None:
        if change.after.weights.resident and not change.before.weights.resident:
            self._nudged.set()
        # In the middle of an update nobody knows whose weights these are.
        if not self._server.updates:
            self._refresh()

    def _note_target(self, target: int | None) -> None:
        self._target = target
        if target is not None:
            self._refresh()

    def _refresh(self) -> None:
        before, self.status = self.status, self._now()
        if self.status.is_as(before):
            return
        level = logging.WARNING if self.status.state in _TOLD_LOUDLY else logging.INFO
        _log.log(
            level,
            "%s: %s",
            self.options.source,
            self.status,
            extra={"follow": self.status.fields()},
        )
        for observer in self._observers:
            observer(self.status)

    def _now(self) -> FollowStatus:
        stamp, live, seen = self._server.stamp, self._mark, self._ahead.seen
        trouble = self._failure or self._ahead.trouble_with()
        is_displaced = self._live.is_displaced(stamp)
        behind = seen.behind(self._live.last.version)
        is_newest = trouble is None and not behind.versions and self._mark == self._ahead.held
        state = self._state(is_displaced=is_displaced, trouble=trouble, is_newest=is_newest)
        reason = None if trouble is None else str(trouble) or type(trouble).__name__
        if state is FollowState.DISPLACED:
            reason = (
                f"the weights of epoch {stamp.epoch}, called {stamp.version!r}, are not those of "
                f"{self._live.last} that were committed; ask for a commit to go back to the stream"
            )
        return FollowStatus(
            source=str(self.options.source),
            local=str(self.options.local),
            commit=str(self.options.pace),
            state=state,
            reason=reason,
            kind=None if trouble is None else type(trouble).__name__,
            newest=seen.newest,
            pulled=None if self._ahead.held is None else self._ahead.held.version,
            live=None if live is None else live.version,
            target=self._target,
            behind=behind,
            is_displaced=is_displaced,
            reached=self._reached,
            ready_version=self.options.ready_version,
            looks=self._looks,
            failures=self._failures,
        )

    def _state(
        self, *, is_displaced: bool, trouble: Exception | None, is_newest: bool
    ) -> FollowState:
        states = {
            FollowState.PULLING: self._target is not None,
            FollowState.COMMITTING: self._committing,
            FollowState.FAILING: self._failure is not None,
            FollowState.DISPLACED: is_displaced,
            FollowState.LOOKING: not self._looks,
            FollowState.CURRENT: is_newest,
            FollowState.WAITING: trouble is None,
        }
        return next((state for state, holds in states.items() if holds), FollowState.FAILING)
