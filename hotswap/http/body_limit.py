"""How long a body may be. It holds for every route that does not say that it streams uploads."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotswap.http.errors import PayloadTooLarge

__all__ = ["BodyLimit", "limited"]


class BodyLimit:
    """Middleware: no route gets to read more than ``limit_bytes``.

    It stands behind the gate, which notes in the scope which route will run.
    """

    def __init__(self, app: ASGIApp, *, limit_bytes: int) -> None:
        self._app = app
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app with a ``receive`` that raises PayloadTooLarge.

        Raises: PayloadTooLarge when the headers promise too much; nothing is read then.
        """
        streams = getattr(scope.get("hotswap.route"), "streams_upload", False)
        if scope["type"] == "http" and not streams:
            if _promised_bytes(scope) > self._limit_bytes:
                raise _too_large(self._limit_bytes)
            receive = limited(receive, self._limit_bytes)
        await self._app(scope, receive, send)


def limited(receive: Receive, limit_bytes: int) -> Receive:
    """``receive``, until more than ``limit_bytes`` have come.

    What is counted is what arrives, whatever the request's headers said. The returned
    callable raises PayloadTooLarge, and leaves the rest of the body where it is.
    """
    seen = 0

    async def counting() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit_bytes:
            raise _too_large(limit_bytes)
        return message

    return counting


def _promised_bytes(scope: Scope) -> float:
    """What ``Content-Length`` says; 0 where it says nothing that is a number."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    text = headers.get(b"content-length", b"").strip()
    # Not int(), which refuses to read thousands of digits.
    return float(text) if text.isdigit() else 0


def _too_large(limit_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the body has more than {limit_bytes} bytes; send less, or start the server "
        "with a larger --max-http-request-bytes"
    )
