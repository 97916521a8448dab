"""The steps of reading events: a broken connection is resumed where it broke."""

from __future__ import annotations

from collections import deque

from hotswap.client.effects import (
    NoReply,
    OpenStream,
    Reply,
    Steps,
    close_stream,
    open_stream,
    read_stream,
    sleep,
)
from hotswap.client.errors import RequestRefused
from hotswap.client.fields import malformed
from hotswap.client.replies import command_error, is_success
from hotswap.client.session import Budget, ServerKind, Session, answered
from hotswap.client.sse import EventParser, ServerEvent

__all__ = ["Feed"]

_PATH = "/hotswap/v1/events"

# Three of the server's heartbeats: then the connection is dead.
_SILENCE_S = 45.0
_RETRY_S = 0.5
_LEAST_S = 0.001
_EVENTS = "text/event-stream"


class Feed:
    """Where one reader of events is.

    ``after`` is the id of the last event that it has; None begins with the next one, and
    ``"0"`` with the oldest that the server keeps. ``reconnect_s`` bounds how long a
    server may be gone, or tell nothing. Raises: ValueError for no time at all.
    """

    def __init__(self, session: Session, *, after: str | None, reconnect_s: float) -> None:
        self.last_id = after
        self._session = session
        self._at = f"{session.url}{_PATH}"
        self._reconnect_s = reconnect_s
        self._ready: deque[ServerEvent] = deque()
        self._parser: EventParser | None = None
        self._over = False
        # How long the server may go on telling nothing; None while it tells something.
        self._away: Budget | None = None
        # A wrong number is found now, and not by the first look.
        session.budget(reconnect_s, name="reconnect_s")

    def __repr__(self) -> str:
        return f"<Feed of {self._session.url} after {self.last_id}>"

    def next(self) -> Steps[ServerEvent | None]:
        """The next event; None once the server has said that there will be none.

        Raises: NoAnswer when the server was gone for too long; RequestRefused, ReplyMalformed.
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
        trouble = NoReply("it ended, and had nothing to tell", sent=True)
        piece = b""
        try:
            if self._parser is None:
                yield from self._connect()
            piece = yield from read_stream()
        except NoReply as error:
            trouble = error
        if piece and self._parser is not None:
            self._away = None
            self._take(self._parser, piece)
            return
        yield from close_stream()
        self._parser = None
        # Connections that bring nothing bring the server no nearer.
        yield from self._session.wait_in_silence(_PATH, self._away_budget(), trouble)

    def _take(self, parser: EventParser, piece: bytes) -> None:
        try:
            events = parser.feed(piece)
        except ValueError as error:
            raise malformed(self._at, seen=str(error), wanted="events") from error
        self._over = self._over or any(event.name == "shutdown" for event in events)
        self._ready.extend(events)

    def _away_budget(self) -> Budget:
        self._away = self._away or self._session.budget(self._reconnect_s, name="reconnect_s")
        return self._away

    def _connect(self) -> Steps[None]:
        budget = self._away_budget()
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
            opened = OpenStream(
                path=_PATH,
                timeout_s=_SILENCE_S,
                open_s=max(min(_SILENCE_S, budget.left_s), _LEAST_S),
                headers=headers,
            )
            reply = yield from open_stream(opened)
            reply = answered(self._session.received(reply, admin=False))
        except NoReply as error:
            yield from close_stream()
            yield from self._session.wait_or_give_up(_PATH, budget, error)
            return
        if is_success(reply) and _has_events(reply):
            self._parser = EventParser()
            return
        yield from close_stream()
        if is_success(reply):
            kind = reply.headers.get("content-type", _EVENTS)
            seen = f"{reply.status} and {reply.hide(kind):.80} {_encoding(reply)}".rstrip()
            raise malformed(self._at, seen=seen, wanted=_EVENTS)
        refusal = command_error(reply, doing=self._at)
        pause_s = budget.pause_s(_RETRY_S)
        if not refusal.retryable or pause_s is None:
            raise refusal
        yield from sleep(pause_s)


def _has_events(reply: Reply) -> bool:
    kind = reply.headers.get("content-type", _EVENTS)
    if _encoding(reply) not in ("", "identity"):
        return False  # Nobody asked for it, and it may become any length.
    return kind.partition(";")[0].strip().lower() == _EVENTS


def _encoding(reply: Reply) -> str:
    return reply.headers.get("content-encoding", "").strip().lower()[:40]
