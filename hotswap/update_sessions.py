"""The one session that may be open: nothing else changes the weights until it has ended.

Rules:

* One session at a time. While it is open every other update is ``Busy``, and none begins
  while an update runs. A session whose chunks need no id takes whole updates too, which are
  done at once, until its first chunk has come: they may be its own.
* A session that nothing came for in ``timeout_s`` is over and its memory free: whoever
  opened it may have died, and another must be able to begin.
* An end is remembered for a while, so that a commit that is sent twice has one answer.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable

from hotswap.errors import Busy, IllegalCommand, UpdateRejected
from hotswap.seams import Engine
from hotswap.types import Scope, Update, UpdateReport
from hotswap.update_session import ChunkReport, Labels, UpdateSession
from hotswap.wire.pushed import Pushed
from hotswap.wire.strategy import pushed_by

__all__ = ["UpdateSessions"]

_log = logging.getLogger("hotswap.update")

_REMEMBERED = 64


class UpdateSessions:
    """Opens, finds, commits and ends sessions. Event-loop thread only."""

    def __init__(
        self,
        engine: Engine,
        *,
        commit: Callable[[Update], Awaitable[UpdateReport]],
        busy: Callable[[], str | None] = lambda: None,
        timeout_s: float = 600.0,
        wait_s: float = 30.0,
    ) -> None:
        """``commit`` runs an update; ``busy`` says why no session may begin now, if so. Chunks
        and commits wait for each other for ``wait_s`` at most."""
        self._engine = engine
        self._commit = commit
        self._busy = busy
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._committing: UpdateSession | None = None
        self._open: UpdateSession | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended: dict[str, UpdateReport | str] = {}

    def __repr__(self) -> str:
        return f"<UpdateSessions {self._open or 'none open'}>"

    @property
    def open(self) -> UpdateSession | None:
        """The session that is open."""
        return self._open

    @property
    def unnamed(self) -> UpdateSession | None:
        """The open session to which chunks without an ``update_id`` belong."""
        return self._open if self._open is not None and self._open.unnamed else None

    def shown(self) -> dict[str, object] | None:
        """The open session in JSON types; None while none is open."""
        return None if self._open is None else self._open.shown()

    def begin(
        self,
        *,
        update_id: str | None = None,
        scope: Scope = Scope.FULL,
        labels: Labels | None = None,
        unnamed: bool = False,
        selector: str = "all",
    ) -> UpdateSession:
        """Open a session; one that is open under this very id is returned again.

        Raises: Busy while another is open or an update runs; IllegalCommand for an id that
        has ended, or is open with another scope.
        """
        if self._open is not None and self._open.update_id == update_id:
            if self._open.scope is not scope:
                raise IllegalCommand(
                    f"the update {update_id!r:.100} is open with scope {self._open.scope}, and is "
                    f"begun again with {scope}; send the same, or abort it first"
                )
            self._open.touch()
            return self._open
        if update_id in self._ended:
            raise IllegalCommand(f"{self._how_ended(update_id)}; begin one of another id")
        if self._open is not None:
            raise Busy(self._held_by(self._open))
        reason = self._busy()
        if reason is not None:
            raise Busy(f"no session can begin now: {reason}; retry when that has ended")
        self._open = UpdateSession(
            self._engine,
            update_id=update_id or uuid.uuid4().hex,
            scope=scope,
            labels=labels,
            unnamed=unnamed,
            selector=selector,
            wait_s=self._wait_s,
        )
        self._arm(self._timeout_s)
        return self._open

    def find(self, update_id: str | None) -> UpdateSession:
        """The open session of that id, or (None) the one without need of an id.

        Raises: IllegalCommand when there is none.
        """
        session = self.unnamed if update_id is None else self._open
        if session is not None and update_id in (None, session.update_id):
            session.touch()
            return session
        if update_id in self._ended:
            raise IllegalCommand(f"{self._how_ended(update_id)}; begin another one")
        is_open = "none" if self._open is None else repr(self._open.update_id)
        raise IllegalCommand(
            f"no update {update_id!r:.100} is open (open: {is_open}); begin it first"
        )

    def for_chunk(self, update_id: str | None) -> UpdateSession | None:
        """The session that a chunk belongs to; None for one that is an update of its own.

        Raises: IllegalCommand for an id that is not open.
        """
        if update_id is None and self.unnamed is None:
            return None
        return self.find(update_id)

    async def stage(self, session: UpdateSession, pushed: Pushed, labels: Labels) -> ChunkReport:
        """Add a chunk. Raises: UpdateRejected; IllegalCommand when it has ended meanwhile."""
        report = await session.stage(pushed, labels)
        if session is not self._open:
            # Its end took away what was there; what came after that goes the same way.
            session.close()
            raise IllegalCommand(f"{self._how_ended(session.update_id)}; begin another one")
        return report

    async def commit(
        self, update_id: str | None, labels: Labels | None = None
    ) -> UpdateReport | None:
        """Make everything that came live; None for a session without a tensor that needs no id.

        Sent again it answers as it did. When it fails the session stays open: send what was
        missing and commit again, or abort. Raises: IllegalCommand, InFlight, Busy,
        UpdateRejected (all: weights untouched), UpdateRolledBack, UpdateFailed.
        """
        known = None if update_id is None else self._ended.get(update_id)
        if isinstance(known, UpdateReport):
            return known
        session = self.find(update_id)
        async with session.turns.turn():
            known = self._ended.get(session.update_id)
            if isinstance(known, UpdateReport):
                return known
            session = self.find(session.update_id)
            session.say(labels or Labels())
            self._committing = session
            try:
                report = await self._committed(session)
            finally:
                self._committing = None
            self._end(session, report or "ended without a tensor")
        return report

    async def abort(self, update_id: str | None = None) -> str | None:
        """Forget the session, or (None) whichever is open; its id, None when there is none.

        Nothing live has been touched. A chunk that is still being staged is told so at its end;
        a commit that runs is waited for. Raises: IllegalCommand for one that was committed; Busy.
        """
        session = self._open
        if update_id is not None and (session is None or session.update_id != update_id):
            if isinstance(self._ended.get(update_id), UpdateReport):
                raise IllegalCommand(f"{self._how_ended(update_id)}; there is nothing to abort")
            return None
        if session is None:
            return None
        if session is self._committing:
            async with session.turns.turn():
                return await self.abort(session.update_id)
        self._end(session, "was aborted")
        return session.update_id

    def refuse_others(self, update: Update | None = None) -> None:
        """Raises: Busy while a session is open, unless ``update`` is its own commit."""
        session = self._open
        if session is None or (update is not None and pushed_by(update) is session):
            return
        if session.unnamed and session.empty:
            return
        raise Busy(self._held_by(session))

    def note_update(self) -> None:
        """An update that is no chunk was done; it counts for a session that needs no id."""
        if self.unnamed is not None:
            self.unnamed.note_update()

    def close(self) -> None:
        """Forget the open session: the server ends."""
        if self._open is not None:
            self._end(self._open, "was dropped by a shutdown")

    async def _committed(self, session: UpdateSession) -> UpdateReport | None:
        if not session.empty:
            return await self._commit(await session.update())
        if session.unnamed:
            return None
        raise UpdateRejected(
            f"the update {session.update_id} has no tensors; push some before its commit"
        )

    def _end(self, session: UpdateSession, end: UpdateReport | str) -> None:
        self._open = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        session.close()
        self._ended[session.update_id] = end
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def _held_by(self, session: UpdateSession) -> str:
        return (
            f"the update {session.update_id!r} is open, with {session.chunks} chunks, and nothing "
            "else changes the weights until it is committed or aborted; retry then (it ends by "
            f"itself {self._timeout_s:g} s after its last chunk)"
        )

    def _how_ended(self, update_id: str | None) -> str:
        end = self._ended.get(update_id or "", "has ended")
        how = end if isinstance(end, str) else "was committed"
        return f"the update {update_id!r:.100} {how}"

    def _arm(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        session = self._open
        if session is None:
            return
        left = self._timeout_s - session.idle_s
        if session.turns.taken:
            self._arm(self._timeout_s)
            return
        if left > 0:
            self._arm(left)
            return
        _log.warning("%r is over: nothing came for it in %g s", session, self._timeout_s)
        self._end(session, f"timed out after {self._timeout_s:g} s without a chunk")
