"""One raw ASGI request, for what httpx's transport cannot show: events as they
come, and a client that goes away."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any

from starlette.types import ASGIApp, Message, Scope

__all__ = ["AsgiCall"]


class AsgiCall:
    """Runs ``app`` on one request while the context is open.

    ``body`` is sent as JSON. The client stays connected until :meth:`disconnect`.
    """

    def __init__(self, app: ASGIApp, method: str, path: str, body: object = None) -> None:
        self._app = app
        self._scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.1"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._outgoing: asyncio.Queue[Message] = asyncio.Queue()
        encoded = b"" if body is None else json.dumps(body).encode()
        self._incoming.put_nowait({"type": "http.request", "body": encoded, "more_body": False})
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<AsgiCall {self._scope['method']} {self._scope['path']}>"

    def disconnect(self) -> None:
        """The client goes away."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def next_message(self) -> Message:
        """The next message that the app sends."""
        return await self._outgoing.get()

    async def next_event(self) -> Any:
        """The next server-sent event of the reply, decoded; ``"[DONE]"`` as it is."""
        while True:
            message = await self.next_message()
            if message["type"] != "http.response.body" or not message.get("body"):
                continue
            text = message["body"].decode()
            assert text.startswith("data: "), text
            assert text.endswith("\n\n"), text
            payload = text.removeprefix("data: ").removesuffix("\n\n")
            return payload if payload == "[DONE]" else json.loads(payload)

    async def finished(self) -> list[Message]:
        """Wait until the app returns; what it sent and nobody has taken."""
        assert self._task is not None, "use AsgiCall as a context manager"
        await self._task
        left: list[Message] = []
        while not self._outgoing.empty():
            left.append(self._outgoing.get_nowait())
        return left

    async def __aenter__(self) -> AsgiCall:
        run = self._app(self._scope, self._incoming.get, self._outgoing.put)
        self._task = asyncio.ensure_future(run)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._task is not None, "use AsgiCall as a context manager"
        self._task.cancel()
        await asyncio.wait([self._task])
