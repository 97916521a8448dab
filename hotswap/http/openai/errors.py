"""Errors in OpenAI's envelope, whatever dialect the rest of the server speaks.

Statuses are those of the shared table; only the body differs:
``{"error": {"message", "type", "param", "code"}}``.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotswap.foreign import contained
from hotswap.http.errors import (
    ClientGone,
    NotFound,
    RequestInvalid,
    Unauthorized,
    message_of,
    wire_of,
)
from hotswap.http.failures import log_failure
from hotswap.http.replies import Json

__all__ = ["ModelNotFound", "OpenAiEnvelope", "ParameterRefused", "openai_body", "openai_reply"]

_TYPES = {403: "permission_error", 429: "rate_limit_error"}


class ParameterRefused(RequestInvalid):
    """One field of the body is not what this server can do."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class ModelNotFound(NotFound):
    """``model`` names another model than the one that is served."""

    param = "model"
    code = "model_not_found"


def openai_body(error: Exception) -> dict[str, object]:
    """The envelope of ``error``."""
    wire = wire_of(error)
    message = wire.message or message_of(error)
    field = error.field if isinstance(error, RequestInvalid) else None
    kind = "invalid_request_error" if wire.status < 500 else "server_error"
    return {
        "error": {
            "message": message,
            "type": _TYPES.get(wire.status, kind),
            "param": getattr(error, "param", field),
            "code": getattr(error, "code", wire.code),
        }
    }


def openai_reply(error: Exception) -> Json:
    """A whole reply for ``error``."""
    headers = dict(getattr(error, "headers", None) or {})
    return Json(openai_body(error), status_code=wire_of(error).status, headers=headers)


class OpenAiEnvelope:
    """Middleware that answers for whatever one of ``routes`` raised, or its gate did.

    It notes ``hotswap.openai`` in the scope, for what the router itself refuses.
    """

    def __init__(self, app: ASGIApp, *, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app; an error after the reply began goes on."""
        if scope["type"] != "http" or not self._is_ours(scope):
            await self._app(scope, receive, send)
            return
        scope["hotswap.openai"] = True
        begun = False

        async def send_noting(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            with contained("the route"):
                await self._app(scope, receive, send_noting)
        except (ClientGone, Unauthorized):
            # Who has no key must not learn from the reply which routes there are.
            raise
        except Exception as error:
            if begun:
                raise
            if wire_of(error).status in (500, 504):
                log_failure(f"{scope['method']} {scope['path']}", error)
            await openai_reply(error)(scope, receive, send)

    def _is_ours(self, scope: Scope) -> bool:
        return any(route.matches(scope)[0] is not Match.NONE for route in self._routes)
