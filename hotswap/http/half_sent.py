"""Requests whose bodies are still on their way when the server goes down."""

from __future__ import annotations

import anyio.lowlevel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotswap.http.in_flight import InFlightRequests

__all__ = ["HalfSent"]


class HalfSent:
    """Middleware: once ``requests`` is closed nobody waits for the rest of a body.

    Its reader gets ShuttingDown, so that one client that stopped in the middle of
    its request does not hold up the whole shutdown.
    """

    def __init__(self, app: ASGIApp, *, requests: InFlightRequests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app with a ``receive`` that gives up."""
        is_whole = False

        async def receive_or_give_up() -> Message:
            nonlocal is_whole
            if is_whole:
                return await receive()
            message = await self._requests.before_closed(receive)
            is_whole = not message.get("more_body", False)
            return message

        if scope["type"] == "http" and _may_have_a_body(scope):
            await self._app(scope, receive_or_give_up, send)
        else:
            # Whoever asks again and again, in this very event loop, lets others run as well.
            await anyio.lowlevel.checkpoint()
            await self._app(scope, receive, send)


def _may_have_a_body(scope: Scope) -> bool:
    """Whether there is anything to wait for: results are asked for without a body."""
    names = {name.lower() for name, _ in scope["headers"]}
    told = b"content-length" in names or b"transfer-encoding" in names
    # Later versions end a body without having told of it.
    return told or not str(scope.get("http_version")).startswith("1")
