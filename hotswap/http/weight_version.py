"""The label of the live weights: look at it, or give the same weights another."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from hotswap.http.disconnect import until_disconnect
from hotswap.http.json_body import arguments
from hotswap.http.replies import Json
from hotswap.http.schemas import RelabelBody
from hotswap.http.served import served
from hotswap.update_session import Labels

__all__ = ["get_weight_version", "update_weight_version"]


async def get_weight_version(request: Request) -> Response:
    """Which weights are live. Never waits."""
    stamp = served(request).commands.stamp
    return Json(
        {
            "weight_version": stamp.version,
            "token_step": stamp.token_step,
            "weight_update_count": stamp.update_count,
            "weight_epoch": stamp.epoch,
        }
    )


async def update_weight_version(request: Request) -> Response:
    """Give the live weights another version, between two updates and two forward passes.

    In a session of miles that has chunks it is theirs, from their commit on.
    """
    serving = served(request)
    body = await arguments(
        request, RelabelBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    version = str(body.new_version)
    session = serving.commands.sessions.unnamed
    if session is not None and not session.empty:
        # miles names the weights that it has just pushed before it ends its session.
        session.say(Labels(version=version))
        return Json(_relabelled(version, aborted=0))
    relabel = partial(serving.commands.relabel, version, abort=body.abort_all_requests)
    aborted = await until_disconnect(request.receive, relabel)
    return Json(_relabelled(version, aborted=aborted))


def _relabelled(version: str, *, aborted: int) -> dict[str, object]:
    return {
        "success": True,
        "message": f"Weight version updated to {version}",
        "new_version": version,
        "num_aborted_requests": aborted,
    }
