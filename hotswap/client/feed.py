"""The steps of reading events: a broken connection is resumed where it broke."""

from __future__ import annotations

from collections import deque

from hotswap.client.effects import (
    NoReply,
    OpenStream,
    Steps,
    close_stream,
    open_stream,
    read_stream,
    sleep,
)
from hotswap.client.errors import RequestRefused
from hotswap.client.replies import command_error
from hotswap.client.session import Budget, ServerKind, Session
from hotswap.client.sse import EventParser, ServerEvent

__all__ = ["Feed"]

_PATH = "/hotswap/v1/events"

# Three of the server's heartbeats: then the connection is dead.
_SILENCE_S = 45.0
_RETRY_S = 0.5


class Feed:
    """Where one reader of events is.

    ``after`` is the id of the last event that it has; None begins with the next one, and
    ``"0"`` with the oldest that the server keeps. ``reconnect_s`` bounds how long a
    server may be gone.
    """

    def __init__(self, session: Session, *, after: str | None, reconnect_s: float) -> None:
        self.last_id = after
        self._session = session
        self._reconnect_s = reconnect_s
        self._ready: deque[ServerEvent] = deque()
        self._parser: EventParser | None = None
        self._over = False

    def __repr__(self) -> str:
        return f"<Feed of {self._session.url} after {self.last_id}>"

    def next(self) -> Steps[ServerEvent | None]:
        """The next event; None once the server has said that there will be none.

        Raises: NoAnswer when the server was gone for too long; RequestRefused.
        """
        while not self._ready:
            if self._over:
                yield from close_stream()
                return None
            yield from self._read()
        event = self._ready.popleft()
        self.last_id = event.id or self.last_id
        return event

    def _read(self) -> Steps[None]:
        try:
            if self._parser is None:
                yield from self._connect()
            piece = yield from read_stream()
        except NoReply:
            piece = b""
        if not piece or self._parser is None:
            yield from close_stream()
            self._parser = None
            yield from sleep(_RETRY_S)
            return
        for event in self._parser.feed(piece):
            self._over = self._over or event.name == "shutdown"
            self._ready.append(event)

    def _connect(self) -> Steps[None]:
        budget = self._session.budget(self._reconnect_s)
        kind = yield from self._session.kind_of_server(budget)
        if kind is ServerKind.SGLANG:
            raise RequestRefused(
                f"{self._session.url} is no hotswap server and has no events; "
                "ask for its state instead",
                status=404,
            )
        while self._parser is None:
            yield from self._open(budget)

    def _open(self, budget: Budget) -> Steps[None]:
        resumed = {} if self.last_id is None else {"last-event-id": self.last_id}
        headers = {**self._session.key_headers(admin=False), **resumed}
        try:
            reply = yield from open_stream(
                OpenStream(path=_PATH, timeout_s=_SILENCE_S, headers=headers)
            )
        except NoReply as error:
            yield from self._session.wait_or_give_up(_PATH, budget, error)
            return
        if reply.status == 200:
            self._parser = EventParser()
            return
        yield from close_stream()
        refusal = command_error(reply, doing=f"{self._session.url}{_PATH}")
        if not refusal.retryable or budget.left_s <= _RETRY_S:
            raise refusal
        yield from sleep(_RETRY_S)
