"""SGLang's dialect, and that of the trainers that were written for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from hotswap import errors
from hotswap.admission import WhilePaused
from hotswap.http.errors import (
    GR_TABLE,
    DuplicateRequestId,
    Forbidden,
    NoSuchWeight,
    Unauthorized,
    Wire,
    message_of,
    pull_fields,
    wire_of,
)
from hotswap.http.replies import Json
from hotswap.http.weight_rows import tensor_pieces
from hotswap.stream.errors import StreamError

__all__ = ["SGLANG_TABLE", "SglangDialect"]

# Clients of SGLang know one refusal: 400, and then what the body says.
_REFUSALS = (
    DuplicateRequestId,
    NoSuchWeight,
    errors.CommandError,
    errors.IllegalCommand,
    errors.InFlight,
    errors.Busy,
    errors.Overtaken,
    errors.UpdateRejected,
    errors.UpdateRolledBack,
    errors.UpdateFailed,
)

SGLANG_TABLE: Mapping[type[Exception], Wire] = {
    **GR_TABLE,
    **{
        kind: replace(wire, status=400)
        for kind, wire in GR_TABLE.items()
        if kind in _REFUSALS or issubclass(kind, StreamError)
    },
}

_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


class SglangDialect:
    """Satisfies ``Dialect``.

    SGLang has two envelopes, one at the top and one under ``error``; clients read
    either, so an error carries both.
    """

    name = "sglang"
    while_paused = WhilePaused.HOLD
    boot_version: str | None = "default"
    temperature: float = 1.0
    aborts_by_prefix = True
    generate_timeout_s: float = 0.0

    def __repr__(self) -> str:
        return "<SglangDialect>"

    def own_meta(
        self, rid: str, reply: Mapping[str, object], *, score: float | None
    ) -> dict[str, object]:
        """Nothing is told apart from reasoning here, so none of the tokens counts as that."""
        return {"reasoning_tokens": 0}

    def health(self, body: Mapping[str, object], *, status: int) -> Response:
        """Empty, as SGLang's; ``/status`` says more."""
        return PlainTextResponse(status_code=status)

    def wire(self, error: Exception) -> Wire:
        """As GR's table says, with 400 for every refused command and failed update."""
        return wire_of(error, SGLANG_TABLE)

    def error_body(
        self, error: Exception, *, wire: Wire, reports_success: bool
    ) -> dict[str, object]:
        """Both envelopes; for paths and methods that do not exist, Starlette's own."""
        if isinstance(error, HTTPException):
            return {"detail": error.detail}
        if isinstance(error, Unauthorized | Forbidden):
            return {"error": type(error).__name__}
        message = self._message(error, wire)
        body: dict[str, object] = {
            "object": "error",
            "message": message,
            "type": "Bad Request" if wire.status == 400 else str(wire.status),
            "param": None,
            "code": wire.status,
        }
        if reports_success:
            # miles takes an "error" of a body like this for the whole message.
            return body | {"success": False, "error_message": message} | pull_fields(error)
        return body | self._event(message, error, wire)

    def stream_error(self, error: Exception) -> dict[str, object]:
        """``{"error": {message, type, code, retryable}}``."""
        wire = self.wire(error)
        return self._event(self._message(error, wire), error, wire)

    def weight_pieces(self, tensor: torch.Tensor) -> Iterator[bytes]:
        """The list, bare."""
        return tensor_pieces(tensor)

    def updated(self, *, source: str, version: str | None) -> str:
        """Tells of the version when one was sent."""
        return f"Succeeded to update model weights.{_told(version)}"

    def pushed(self, *, version: str | None) -> str:
        """A word, and the version when one was sent."""
        return f"Success{_told(version)}"

    def flushed(self, entries: int) -> Response:
        """A text, which some clients compare."""
        return PlainTextResponse(_FLUSHED)

    def memory_moved(self, body: Mapping[str, object]) -> Response:
        """``null``, as SGLang's; ``/status`` says what is released."""
        return Json(None)

    def flush_refused(self, error: Exception) -> Response:
        """A text that says why."""
        wire = self.wire(error)
        return PlainTextResponse(f"{self._message(error, wire)}\n", status_code=wire.status)

    def _message(self, error: Exception, wire: Wire) -> str:
        message = wire.message or message_of(error)
        if isinstance(error, NoSuchWeight):
            return f"Get parameter by name failed: {message}"
        return message

    def _event(self, message: str, error: Exception, wire: Wire) -> dict[str, object]:
        return {
            "error": {
                "message": message,
                "type": "invalid_request_error" if wire.status == 400 else wire.code,
                "code": wire.status,
                "retryable": bool(getattr(error, "retryable", False)),
            }
        }


def _told(version: str | None) -> str:
    return "" if version is None else f" Weight version updated to {version}."
