"""Replies to requests that nobody read to their end: a refused key's, or too long a body's."""

from __future__ import annotations

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotswap.http.in_flight import InFlightRequests

__all__ = ["CloseUnread"]

_MOST_BYTES = 64 * 1024 * 1024
_MOST_S = 30.0
_SILENCE_S = 2.0


class CloseUnread:
    """Middleware: a reply that overtakes its request's body says that the connection ends.

    HTTP/1.1 cannot go on behind a body that did not come, so hypercorn closes then. A
    client that is not told sends its next request into the closed connection. One that is
    still sending gets to read the reply: closing a connection that bytes are on their way
    to takes back what was sent. So the reply goes out whole, and then what still comes is
    swallowed: 64 MiB, 30 seconds and 2 of silence at most, and nothing once ``requests`` is
    closed, as the server goes down.

    Later versions keep the connection, of which the request is a part; swallowing is for
    hypercorn, which ends the whole of it when more comes behind the end of a reply.
    """

    def __init__(self, app: ASGIApp, *, requests: InFlightRequests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, and add ``Connection: close`` where the body was not read whole."""
        if scope["type"] != "http" or not _may_have_a_body(scope):
            await self._app(scope, receive, send)
            return
        is_whole, ends_connection = False, _is_first_version(scope)

        async def noting() -> Message:
            nonlocal is_whole
            message = await receive()
            is_whole = is_whole or not message.get("more_body", False)
            return message

        async def telling(message: Message) -> None:
            is_start = message["type"] == "http.response.start"
            if is_whole or (is_start and not ends_connection):
                await send(message)
            elif is_start:
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                await send({**message, "headers": headers})
            elif message.get("more_body", False):
                await send(message)
            else:
                # With its last message the connection would be closed.
                await send({**message, "more_body": True})
                await self._swallow(noting)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app(scope, noting, telling)

    async def _swallow(self, receive: Receive) -> None:
        """Take the rest of a body, until it ends or its client is silent or gone."""
        swallowed = 0
        with anyio.move_on_after(_MOST_S):
            while swallowed <= _MOST_BYTES and not self._requests.closed:
                with anyio.move_on_after(_SILENCE_S) as silence:
                    message = await receive()
                if silence.cancelled_caught or not message.get("more_body", False):
                    return
                swallowed += len(message.get("body", b""))


def _is_first_version(scope: Scope) -> bool:
    return str(scope.get("http_version")).startswith("1")


def _may_have_a_body(scope: Scope) -> bool:
    if not _is_first_version(scope):
        # A body need not be told of there.
        return True
    headers = {name.lower(): value for name, value in scope["headers"]}
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip() != b"0"
