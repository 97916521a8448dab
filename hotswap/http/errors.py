"""One table from error class to status and code, and the envelope they travel in.

Rule: routes raise; nothing else in the HTTP layer chooses a status. The GR
table is the default dialect's; another dialect is another table.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotswap import errors
from hotswap.http.replies import Json
from hotswap.http.routes import Kind

__all__ = [
    "GR_TABLE",
    "ClientGone",
    "EngineDown",
    "ErrorEnvelope",
    "NotFound",
    "PayloadTooLarge",
    "RequestError",
    "RequestInvalid",
    "RouteDisabled",
    "ShuttingDown",
    "Wire",
    "error_body",
    "error_reply",
    "wire_of",
]

_log = logging.getLogger("hotswap.http")


class RequestError(Exception):
    """A request that ends at the HTTP edge: no command was started for it."""

    retryable = False


class RequestInvalid(RequestError):
    """The body or a parameter is not what the route takes; the message names it."""


class RouteDisabled(RequestError):
    """The route exists and this server was not started with it."""


class NotFound(RequestError):
    """The request names something that does not exist."""


class PayloadTooLarge(RequestError):
    """The body is longer than this server reads."""


class EngineDown(RequestError):
    """The engine's own thread has ended; nothing can be generated any more."""


class ShuttingDown(RequestError):
    """The server is on its way down and takes no new request."""

    retryable = True


class ClientGone(Exception):
    """The client disconnected before its request was answered: nobody reads a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How a class of error looks on the wire. ``message`` replaces the error's own."""

    status: int
    code: str
    message: str | None = None


_INTERNAL = Wire(
    status=500, code="internal_error", message="internal error; the server's log has the details"
)

GR_TABLE: Mapping[type[Exception], Wire] = {
    RequestInvalid: Wire(status=400, code="validation_error"),
    RouteDisabled: Wire(status=403, code="route_disabled"),
    NotFound: Wire(status=404, code="not_found"),
    PayloadTooLarge: Wire(status=413, code="payload_too_large"),
    EngineDown: Wire(status=503, code="engine_not_running"),
    ShuttingDown: Wire(status=503, code="shutting_down"),
    errors.CommandError: Wire(status=409, code="conflict"),
    errors.IllegalCommand: Wire(status=409, code="conflict"),
    errors.InFlight: Wire(status=409, code="conflict"),
    errors.Busy: Wire(status=409, code="busy"),
    errors.ShuttingDown: Wire(status=503, code="shutting_down"),
    errors.Overtaken: Wire(status=409, code="overtaken"),
    errors.QueueFull: Wire(status=429, code="overloaded"),
    errors.Paused: Wire(status=503, code="paused"),
    errors.WeightsNotWhole: Wire(status=503, code="weights_not_whole"),
    errors.UpdateRejected: Wire(status=400, code="validation_error"),
    errors.UpdateRolledBack: Wire(status=500, code="update_rolled_back"),
    errors.UpdateFailed: Wire(status=500, code="update_failed"),
}

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def wire_of(error: Exception, table: Mapping[type[Exception], Wire] = GR_TABLE) -> Wire:
    """The row for the nearest class of ``error``; anything unknown is internal."""
    if isinstance(error, HTTPException):
        code = _HTTP_CODES.get(error.status_code, "http_error")
        return Wire(status=error.status_code, code=code)
    for base in type(error).__mro__:
        if base in table:
            return table[base]
    return _INTERNAL


def error_body(error: Exception, *, wire: Wire, reports_success: bool) -> dict[str, object]:
    """The envelope; with ``reports_success`` also what trainers look for at the top."""
    message = wire.message or _message(error)
    body: dict[str, object] = {
        "error": {
            "code": wire.code,
            "message": message,
            "retryable": bool(getattr(error, "retryable", False)),
            "status": wire.status,
        }
    }
    if reports_success:
        body |= {"success": False, "message": message, "error_message": message}
    return body


def error_reply(error: Exception, *, wire: Wire | None = None, reports_success: bool) -> Json:
    """A whole reply for ``error``."""
    wire = wire or wire_of(error)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else None
    body = error_body(error, wire=wire, reports_success=reports_success)
    return Json(body, status_code=wire.status, headers=headers)


def _message(error: Exception) -> str:
    if not isinstance(error, HTTPException):
        return str(error)
    allowed = (error.headers or {}).get("Allow")
    if error.status_code == 405 and allowed:
        return f"this route does not take that method; send {allowed.replace(', ', ' or ')}"
    return error.detail


class ErrorEnvelope:
    """Middleware that turns whatever a route raised into its envelope.

    An error that no table row knows is logged with its traceback and answered
    without it. Once a reply has begun the error can only be logged: it is raised
    again so that the server breaks the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app; answer for it when it raises before its reply began."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_noting(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except ClientGone:
            _log.debug("%s %s: the client is gone", scope["method"], scope["path"])
        except Exception as error:
            if begun:
                raise
            wire = wire_of(error)
            if wire is _INTERNAL:
                _log.exception("%s %s failed", scope["method"], scope["path"])
            elif wire.status == 500:
                _log.warning("%s %s: %s: %s", scope["method"], scope["path"], wire.code, error)
            reports = scope.get("hotswap.kind") in (Kind.UPDATE, Kind.CONTROL)
            await error_reply(error, wire=wire, reports_success=reports)(scope, receive, send)
