"""Whatever a route raised, as a reply in the dialect of the server."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotswap.errors import HotswapError
from hotswap.foreign import contained, loggable, words_of
from hotswap.http.dialect import Dialect
from hotswap.http.errors import (
    INTERNAL,
    ClientGone,
    PluginRouteFailed,
    RequestError,
    wire_of,
)
from hotswap.http.replies import Json
from hotswap.http.routes import Kind

__all__ = ["ErrorEnvelope", "error_reply"]

_log = logging.getLogger("hotswap.http")

_REPORTING = (Kind.UPDATE, Kind.CONTROL)


def error_reply(error: Exception, *, dialect: Dialect, kind: object) -> Json:
    """A whole reply for ``error`` on a route of ``kind``."""
    wire = dialect.wire(error)
    headers = dict(getattr(error, "headers", None) or {})
    if isinstance(error, HotswapError | RequestError):
        # The class says what happened to the weights, and SGLang's envelope has no room for it.
        headers["X-Hotswap-Error"] = type(error).__name__
    body = dialect.error_body(error, wire=wire, reports_success=kind in _REPORTING)
    return Json(body, status_code=wire.status, headers=headers)


class ErrorEnvelope:
    """Middleware that turns whatever a route raised into its envelope.

    An error that no table row knows is logged with its traceback and answered
    without it. Once a reply has begun the error can only be logged: it is raised
    again so that the server breaks the connection.
    """

    def __init__(self, app: ASGIApp, *, dialect: Dialect) -> None:
        self._app = app
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app; answer for it when it raises before its reply began."""
        if scope["type"] != "http":
            with contained("the app"):
                await self._app(scope, receive, send)
            return
        begun = False

        async def send_noting(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            with contained("the route"):
                await self._app(scope, receive, send_noting)
        except ClientGone:
            _log.debug("%s %s: the client is gone", scope["method"], scope["path"])
        except Exception as error:
            if begun:
                raise
            # What happened decides, not the status that a dialect has for it.
            wire = wire_of(error)
            place = f"{scope['method']} {words_of(scope['path'])}"
            if wire is INTERNAL:
                _log.error("%s failed", place, exc_info=loggable(error))
            elif isinstance(error, PluginRouteFailed):
                _log.error("%s: %s", place, error, exc_info=loggable(error))
            elif wire.status in (500, 504):
                _log.warning("%s: %s: %s", place, wire.code, words_of(error))
            reply = error_reply(error, dialect=self._dialect, kind=scope.get("hotswap.kind"))
            await reply(scope, receive, send)
