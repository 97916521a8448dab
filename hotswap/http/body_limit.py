"""How long a body may be. It holds for every route that does not say that it streams uploads."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotswap.http.errors import PayloadTooLarge

__all__ = ["BodyLimit", "limited"]

# A client that is still sending reads no reply: swallow this much before 413. So is one
# that sent "Expect: 100-continue": hypercorn tells it to go on before any of this runs.
_DRAIN_BYTES = 64 * 1024 * 1024


class BodyLimit:
    """Middleware: no route gets to read more than ``limit_bytes``.

    It stands behind the gate, which notes in the scope which route will run.
    """

    def __init__(self, app: ASGIApp, *, limit_bytes: int) -> None:
        self._app = app
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app with a ``receive`` that raises PayloadTooLarge."""
        streams = getattr(scope.get("hotswap.route"), "streams_upload", False)
        if scope["type"] == "http" and not streams:
            receive = limited(receive, self._limit_bytes)
        await self._app(scope, receive, send)


def limited(receive: Receive, limit_bytes: int) -> Receive:
    """``receive``, until more than ``limit_bytes`` have come.

    What is counted is what arrives, whatever the request's headers said. The returned
    callable raises PayloadTooLarge once the rest has been swallowed, up to a bound.
    """
    seen = 0

    async def counting() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen <= limit_bytes:
            return message
        while message.get("more_body", False) and seen <= _DRAIN_BYTES + limit_bytes:
            message = await receive()
            seen += len(message.get("body", b""))
        raise PayloadTooLarge(
            f"the body has more than {limit_bytes} bytes; send less, or start the server "
            "with a larger --max-http-request-bytes"
        )

    return counting
