"""Server-sent events to a client that may stop reading: what every stream here is sent with.

Rule: nobody waits for ever for a reader. What a request holds in the engine, and what its
events hold in memory, goes once its client has read nothing for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import anyio
from starlette.types import Message, Send

from hotswap.http.errors import ClientGone

__all__ = ["STALL_S", "EventStream"]

STALL_S = 60.0
"""How long a client of ``/generate`` or of OpenAI's routes may read nothing."""

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)

# JSON lets these stand in a string as they are, and SSE ends no line at them. Readers that
# split by Unicode's rules do (httpx's iter_lines, str.splitlines): they would read half a document.
_LINE_ENDS = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029")

_log = logging.getLogger("hotswap.http")


class EventStream:
    """One reply, for as many tasks as send parts of it.

    Every call raises ClientGone when the client takes longer than ``stall_s`` to make
    room for what is sent.
    """

    def __init__(self, send: Send, *, stall_s: float) -> None:
        self._send = send
        self._stall_s = stall_s
        # A server's send is not for several tasks at once.
        self._sending = anyio.Lock()

    def __repr__(self) -> str:
        return f"<EventStream stall {self._stall_s:g} s>"

    async def begin(self, *, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Status 200, and ``headers`` besides those of every stream."""
        every = [*_HEADERS, *headers]
        await self._bounded({"type": "http.response.start", "status": 200, "headers": every})

    async def payload(self, payload: bytes) -> None:
        """One event without a name; ``payload`` has no line break in it."""
        await self.frames(b"data: " + payload + b"\n\n")

    async def frames(self, frames: bytes) -> None:
        """Whole events as they go over the wire; what Unicode calls a line end is escaped."""
        body = _escaped(frames)
        await self._bounded({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        """Nothing more comes."""
        await self._bounded({"type": "http.response.body", "body": b"", "more_body": False})

    async def _bounded(self, message: Message) -> None:
        async with self._sending:
            with anyio.move_on_after(self._stall_s) as waiting:
                await self._send(message)
        if waiting.cancelled_caught:
            _log.warning(
                "a client has read nothing for %g s; its request and its stream end", self._stall_s
            )
            raise ClientGone


def _escaped(frames: bytes) -> bytes:
    for end, escape in _LINE_ENDS:
        frames = frames.replace(end, escape)
    return frames
