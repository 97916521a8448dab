"""``/hotswap/v1/events``: what happens here, as server-sent events that can be resumed.

Rules:

* A reader is a place in the ring of events: it costs the others nothing.
* One that is too slow is dropped and told why; one that reads nothing is cut off.
* A heartbeat follows every quiet spell, so that both ends notice a dead connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import anyio
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hotswap.events import Event, EventLog, Reader
from hotswap.http.disconnect import until_disconnect
from hotswap.http.event_stream import EventStream
from hotswap.http.json_body import read_body
from hotswap.http.replies import Json, encode
from hotswap.http.served import Served, served
from hotswap.http.status import weights_body

__all__ = ["Events"]

# A proxy in front must not collect events.
_HEADERS = ((b"x-accel-buffering", b"no"),)
_NO = frozenset({"0", "false", "no", "off"})


class Events:
    """An ASGI endpoint, because its reply has no end. Times are in seconds."""

    def __init__(self, *, heartbeat_s: float = 15.0, send_s: float = 30.0) -> None:
        """``send_s`` is how long a client may read nothing before it is cut off."""
        self._heartbeat_s = heartbeat_s
        self._send_s = send_s

    def __repr__(self) -> str:
        return f"<Events heartbeat {self._heartbeat_s:g} s>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream, or list what is kept (``stream=false``)."""
        request = Request(scope, receive)
        serving = served(request)
        await read_body(receive, limit_bytes=serving.settings.max_http_request_bytes)
        asked = _asked(request)
        events = EventStream(send, stall_s=self._send_s)
        if scope["method"] == "HEAD":
            await events.begin(headers=_HEADERS)
            await events.end()
        elif request.query_params.get("stream", "").strip().lower() in _NO:
            await Json(_listed(serving, asked))(scope, receive, send)
        else:
            with serving.observation.events.reading(asked) as reader:
                work = partial(self._stream, serving, reader, asked, events)
                await until_disconnect(receive, work)

    async def _stream(
        self, serving: Served, reader: Reader, asked: str | None, events: EventStream
    ) -> None:
        log = serving.observation.events
        await events.begin(headers=_HEADERS)
        await events.frames(_greeting(serving, reader, asked))
        while True:
            if missed := log.missed(reader):
                await events.frames(_frame("dropped", {"reason": "too_slow", "missed": missed}))
                break
            frames = b"".join(map(_event_frame, log.take(reader)))
            if not frames and log.closed:
                break
            if frames := frames or await self._waited(log, reader):
                await events.frames(frames)
        await events.end()

    async def _waited(self, log: EventLog, reader: Reader) -> bytes:
        """Wait for an event; a heartbeat when none comes in time, else nothing."""
        with anyio.move_on_after(self._heartbeat_s) as quiet:
            await log.wait(reader)
        return b": heartbeat\n\n" if quiet.cancelled_caught else b""


def _asked(request: Request) -> str | None:
    """The id to resume after. The header is a reconnecting browser's, and newer than its URL."""
    asked = request.headers.get("last-event-id") or request.query_params.get("after")
    return asked.strip() or None if asked is not None else None


def _greeting(serving: Served, reader: Reader, asked: str | None) -> bytes:
    """``hello``, which says how things are, and ``gap`` where events are missing."""
    log = serving.observation.events
    here = log.id_of(reader.position)
    hello = _frame("hello", _snapshot(serving), id_=here)
    return hello if reader.gap is None else hello + _frame("gap", _gap(reader, asked), id_=here)


def _snapshot(serving: Served) -> dict[str, object]:
    machine = serving.commands.machine
    return {
        "instance": serving.observation.events.instance,
        "state": machine.state,
        "facts": machine.facts,
        "weights": weights_body(serving),
        "updates": serving.commands.updates,
    }


def _gap(reader: Reader, asked: str | None) -> dict[str, object]:
    return {"asked": (asked or "")[:64], "reason": reader.gap}


def _listed(serving: Served, asked: str | None) -> dict[str, object]:
    """Everything that is kept after ``asked`` (all of it for none), as one document."""
    log = serving.observation.events
    reader = log.place(asked or "0")
    gap = None if reader.gap is None else _gap(reader, asked)
    events = log.take(reader, limit=log.last)
    return {
        **_snapshot(serving),
        "gap": gap,
        "events": [
            {"id": event.id, "event": event.name, "time": event.time, **event.data}
            for event in events
        ],
        "last_id": log.id_of(reader.position),
    }


def _event_frame(event: Event) -> bytes:
    return _frame(event.name, {"time": event.time, **event.data}, id_=event.id)


def _frame(name: str, data: Mapping[str, object], *, id_: str | None = None) -> bytes:
    # JSON has no line breaks of its own, so that one data line is always enough.
    lines = [f"event: {name}".encode(), b"data: " + encode(data)]
    if id_ is not None:
        lines.insert(0, f"id: {id_}".encode())
    return b"\n".join(lines) + b"\n\n"
