"""``/begin_weight_update`` and ``/end_weight_update``: see :mod:`hotswap.http.update_session`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from hotswap.http.json_body import arguments
from hotswap.http.replies import Json
from hotswap.http.schemas import NoBody, SessionBody
from hotswap.http.served import served

__all__ = ["begin_weight_update", "end_weight_update"]


async def begin_weight_update(request: Request) -> Response:
    """Open a session."""
    serving = served(request)
    body = await arguments(
        request, SessionBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    serving.session.begin(body.selector)
    return Json({"success": True, "message": "Success"})


async def end_weight_update(request: Request) -> Response:
    """Close the session. What has to follow a load has followed each one already."""
    serving = served(request)
    await arguments(request, NoBody, limit_bytes=serving.settings.max_http_request_bytes)
    updates = serving.session.end()
    return Json({"success": True, "message": "Success", "num_updates": updates})
