"""One table from error class to status and code, and the envelope they travel in.

Rule: routes raise; nothing else in the HTTP layer chooses a status. The table and
the envelope here are GR's; another dialect has its own, made of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from starlette.exceptions import HTTPException

from hotswap import errors
from hotswap.foreign import words_of
from hotswap.stream import errors as stream_errors

__all__ = [
    "GR_TABLE",
    "INTERNAL",
    "ClientGone",
    "DuplicateRequestId",
    "EngineDown",
    "Forbidden",
    "GenerateTimeout",
    "GenerationFailed",
    "NoSuchWeight",
    "NotFound",
    "PayloadTooLarge",
    "PluginRouteFailed",
    "RequestError",
    "RequestInvalid",
    "RouteDisabled",
    "ShuttingDown",
    "TooManyRequests",
    "Unauthorized",
    "WeightsDiffer",
    "Wire",
    "error_body",
    "message_of",
    "pull_fields",
    "wire_of",
]


class RequestError(Exception):
    """A request that ends at the HTTP edge: no command was started for it."""

    retryable = False


class RequestInvalid(RequestError):
    """The body or a parameter is not what the route takes; the message names it.

    ``field`` is the argument of the request that is to blame, where it is one.
    """

    def __init__(self, message: str = "", *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class DuplicateRequestId(RequestInvalid):
    """A request has this id already, or had it and its result is kept."""


class TooManyRequests(RequestInvalid):
    """One call brings more requests than a call may."""


class Unauthorized(RequestError):
    """The request does not bring the key that this server asks for.

    It must not tell what is there, or what was wrong: every one has the same message, but for
    who brings the right API key where the admin key is needed (``wants_admin``).
    """

    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}

    def __init__(self, *, wants_admin: bool = False) -> None:
        seen = (
            "this route asks for the admin key, and the request brings the API key; send the former"
            if wants_admin
            else "this server asks for a key that the request does not bring; send it"
        )
        super().__init__(f"{seen} as 'Authorization: Bearer KEY' or 'X-GR-API-Key: KEY'")


class Forbidden(RequestError):
    """Nobody may use the route on this server, whatever key they bring."""

    def __init__(self) -> None:
        super().__init__(
            "this route is for the holder of an admin key, and this server has none; "
            "start it with --admin-api-key"
        )


class RouteDisabled(RequestError):
    """The route exists and this server was not started with it."""


class NotFound(RequestError):
    """The request names something that does not exist."""


class NoSuchWeight(NotFound):
    """The request names a weight that the model does not have."""


class WeightsDiffer(RequestError):
    """The live weights are not what they were compared with; the message names tensors."""


class PayloadTooLarge(RequestError):
    """The body is longer than this server reads."""


class EngineDown(RequestError):
    """The engine's own thread has ended; nothing can be generated any more."""


class GenerationFailed(RequestError):
    """The engine could not go on with this one request; the message says why."""


class GenerateTimeout(RequestError):
    """A client has waited for longer than this server lets it; its request was cancelled."""

    retryable = True


class ShuttingDown(RequestError):
    """The server is on its way down and takes no new request."""

    retryable = True


class PluginRouteFailed(Exception):
    """The code of a plug-in's route raised what no table knows; the log has it all."""

    def __init__(self, *, plugin: str, path: str) -> None:
        super().__init__(
            f"the route {path} of the plug-in {plugin} failed; the server's log has the details, "
            "for whoever wrote the plug-in"
        )


class ClientGone(Exception):
    """The client disconnected before its request was answered: nobody reads a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How a class of error looks on the wire. ``message`` replaces the error's own."""

    status: int
    code: str
    message: str | None = None


# Its message repeats nothing of what was raised, and names who has to look.
_OF_A_PLUGIN = Wire(status=500, code="internal_error")

INTERNAL = Wire(
    status=500, code="internal_error", message="internal error; the server's log has the details"
)

GR_TABLE: Mapping[type[Exception], Wire] = {
    RequestInvalid: Wire(status=400, code="validation_error"),
    DuplicateRequestId: Wire(status=409, code="duplicate_request_id"),
    TooManyRequests: Wire(status=413, code="too_many_requests"),
    Unauthorized: Wire(status=401, code="unauthorized"),
    Forbidden: Wire(status=403, code="forbidden"),
    RouteDisabled: Wire(status=403, code="route_disabled"),
    NotFound: Wire(status=404, code="not_found"),
    NoSuchWeight: Wire(status=404, code="not_found"),
    WeightsDiffer: Wire(status=400, code="weights_differ"),
    PayloadTooLarge: Wire(status=413, code="payload_too_large"),
    EngineDown: Wire(status=503, code="engine_not_running"),
    GenerationFailed: Wire(status=500, code="generation_failed"),
    GenerateTimeout: Wire(status=504, code="generate_timeout"),
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
    stream_errors.SourceNotReady: Wire(status=409, code="source_not_ready"),
    stream_errors.SourceUnusable: Wire(status=400, code="source_unusable"),
    stream_errors.VersionMissing: Wire(status=409, code="version_missing"),
    stream_errors.VersionMalformed: Wire(status=400, code="version_malformed"),
    stream_errors.DeltaDamaged: Wire(status=400, code="delta_damaged"),
    stream_errors.UnknownEncoding: Wire(status=400, code="unknown_encoding"),
    stream_errors.OutOfOrder: Wire(status=400, code="out_of_order"),
    stream_errors.BaseChanged: Wire(status=409, code="base_changed"),
    stream_errors.LocalBusy: Wire(status=409, code="busy"),
    stream_errors.NotPulled: Wire(status=409, code="not_pulled"),
    stream_errors.LocalDamaged: Wire(status=409, code="local_damaged"),
    stream_errors.PullPending: Wire(status=409, code="pull_pending"),
    stream_errors.DiskFull: Wire(status=500, code="disk_full"),
    stream_errors.LocalDiskFailed: Wire(status=500, code="local_disk_failed"),
    stream_errors.OutsideRoots: Wire(status=403, code="outside_roots"),
    errors.UpdateRolledBack: Wire(status=500, code="update_rolled_back"),
    errors.UpdateFailed: Wire(status=500, code="update_failed"),
}

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def wire_of(error: Exception, table: Mapping[type[Exception], Wire] = GR_TABLE) -> Wire:
    """The row for the nearest class of ``error``; anything unknown is internal."""
    if isinstance(error, HTTPException):
        code = _HTTP_CODES.get(error.status_code, "http_error")
        return Wire(status=error.status_code, code=code)
    if isinstance(error, PluginRouteFailed):
        return _OF_A_PLUGIN
    for base in type(error).__mro__:
        if base in table:
            return table[base]
    return INTERNAL


def error_body(error: Exception, *, wire: Wire, reports_success: bool) -> dict[str, object]:
    """The envelope; with ``reports_success`` also what trainers look for at the top."""
    message = wire.message or message_of(error)
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
        body |= pull_fields(error)
    return body


def pull_fields(error: Exception) -> dict[str, object]:
    """What a pull that failed says besides; nothing for any other error."""
    if not isinstance(error, stream_errors.StreamError):
        return {}
    return {"local_version": error.local_version, "retryable": error.retryable}


def message_of(error: Exception) -> str:
    """What ``error`` says; for a method that a route does not take, the ones that it does."""
    if not isinstance(error, HTTPException):
        return words_of(error)
    allowed = (error.headers or {}).get("Allow")
    if error.status_code == 405 and allowed:
        return f"this route does not take that method; send {allowed.replace(', ', ' or ')}"
    return words_of(error.detail)
