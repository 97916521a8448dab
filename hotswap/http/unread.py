"""Replies to requests that nobody read to their end, as a refused key's."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CloseUnread"]


class CloseUnread:
    """Middleware: a reply that overtakes its request's body says that the connection ends.

    HTTP/1.1 cannot go on behind a body that did not come, so hypercorn closes then. A
    client that is not told sends its next request into the closed connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, and add ``Connection: close`` where the body was not read whole."""
        if scope["type"] != "http" or not _has_a_body(scope):
            await self._app(scope, receive, send)
            return
        is_whole = False

        async def noting() -> Message:
            nonlocal is_whole
            message = await receive()
            is_whole = is_whole or not message.get("more_body", False)
            return message

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_whole:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self._app(scope, noting, telling)


def _has_a_body(scope: Scope) -> bool:
    if not str(scope.get("http_version")).startswith("1"):
        return False
    headers = {name.lower(): value for name, value in scope["headers"]}
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip() != b"0"
