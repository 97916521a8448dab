"""Sessions: ``/begin_weight_update`` … ``/end_weight_update``, and ``/hotswap/v1/begin`` …"""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import RequestInvalid
from hotswap.http.follow import commit_followed
from hotswap.http.json_body import arguments
from hotswap.http.push_bodies import (
    SessionAbortBody,
    SessionBeginBody,
    SessionBody,
    SessionCommitBody,
)
from hotswap.http.replies import Json
from hotswap.http.schemas import NoBody
from hotswap.http.served import served
from hotswap.http.update_replies import report_body
from hotswap.types import Scope, UpdateReport

__all__ = ["abort", "begin", "begin_weight_update", "commit", "end_weight_update"]


async def begin_weight_update(request: Request) -> Response:
    """Open a session, to which the pushes that follow belong."""
    serving = served(request)
    body = await arguments(
        request, SessionBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    sessions = serving.commands.sessions
    if sessions.open is not None:
        raise RequestInvalid(
            f"a weight update session is open: {sessions.open.update_id!r}; end or abort it "
            "first, or wait"
        )
    session = sessions.begin(scope=Scope(body.scope), unnamed=True, selector=body.selector)
    return Json({"success": True, "message": "Success", "update_id": session.update_id})


async def end_weight_update(request: Request) -> Response:
    """Commit the session: all that was pushed in it becomes live at once."""
    serving = served(request)
    await arguments(request, NoBody, limit_bytes=serving.settings.max_http_request_bytes)
    sessions = serving.commands.sessions
    session = sessions.unnamed
    if session is None:
        raise RequestInvalid("no weight update session is open; send /begin_weight_update first")
    report = await until_disconnect(request.receive, partial(sessions.commit, session.update_id))
    return Json(
        {
            "success": True,
            "message": "Success",
            "num_updates": session.chunks,
            **_committed(session.update_id, report),
        }
    )


async def begin(request: Request) -> Response:
    """Open a session under an id: chunks that name it are staged, and committed together."""
    serving = served(request)
    body = await arguments(
        request, SessionBeginBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    session = serving.commands.sessions.begin(update_id=body.update_id, scope=Scope(body.scope))
    return Json({"success": True, "message": "Success", "update_id": session.update_id})


async def commit(request: Request) -> Response:
    """Make everything live at once that was pushed in a session, or pulled ahead."""
    serving = served(request)
    body = await arguments(
        request, SessionCommitBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    body.check()
    if body.update_id is None:
        return await commit_followed(request, body)
    work = partial(serving.commands.sessions.commit, body.update_id, body.labels())
    report = await until_disconnect(request.receive, work)
    message = serving.dialect.pushed(version=None if report is None else report.stamp.version)
    return Json({"success": True, "message": message, **_committed(body.update_id, report)})


async def abort(request: Request) -> Response:
    """Forget a session, or whichever is open; nothing of it has become live."""
    serving = served(request)
    body = await arguments(
        request, SessionAbortBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    sessions = serving.commands.sessions
    update_id = await sessions.abort(body.update_id)
    message = "Success"
    if update_id is None and body.update_id is not None and sessions.open is not None:
        message = (
            f"nothing to abort: {body.update_id!r:.100} is not open, {sessions.open.update_id!r} "
            "is; name that one, or none, to abort it"
        )
    return Json(
        {
            "success": True,
            "message": message,
            "update_id": update_id,
            "aborted": update_id is not None,
        }
    )


def _committed(update_id: str, report: UpdateReport | None) -> dict[str, object]:
    return {"update_id": update_id} | ({} if report is None else report_body(report))
