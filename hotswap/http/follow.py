"""Routes of a server that follows a stream: commit what is pulled, be told that there is more."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hotswap.follow import Follower
from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import NotFound, RequestInvalid
from hotswap.http.json_body import arguments
from hotswap.http.push_bodies import SessionCommitBody, StreamVersion
from hotswap.http.replies import Json
from hotswap.http.served import Served, served
from hotswap.http.update_replies import nothing_body, report_body

__all__ = ["NoticeBody", "commit_followed", "notice"]


class NoticeBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/hotswap/v1/follow/notice``: there is something new at the source, as ``version``."""

    version: StreamVersion | None = None


async def notice(request: Request) -> Response:
    """Look at the source at once, and say how things stand now; nothing is waited for."""
    serving = served(request)
    body = await arguments(request, NoticeBody, limit_bytes=serving.settings.max_http_request_bytes)
    follower = serving.follower
    if follower is None:
        raise NotFound("this server follows no source; start it with --follow SOURCE")
    follower.notice(body.version)
    told = {"success": True, "message": "Success", "follow": follower.status.fields()}
    return Json(told)


async def commit_followed(request: Request, body: SessionCommitBody) -> Response:
    """Make live what was pulled ahead; ``body`` names no session."""
    serving = served(request)
    follower = _following(serving, body)
    work = partial(follower.commit, body.version, labels=body.labels(), wait_s=body.wait_s)
    report = await until_disconnect(request.receive, work)
    live = follower.status.live
    if report is None:
        said = {**nothing_body(serving, None), "message": f"Version {live} is live already."}
    else:
        serving.commands.sessions.note_update()
        said = {"message": f"Version {live} is live.", **report_body(report)}
    return Json({**said, "update_id": None, "version": live})


def _following(serving: Served, body: SessionCommitBody) -> Follower:
    """Raises: RequestInvalid where nothing is followed, and a session should have been named."""
    if serving.follower is None:
        raise RequestInvalid(
            "this server follows no source of which it could commit a version, and update_id is "
            "missing: start the server with --follow SOURCE, or send the update_id of a session "
            "to this route, /hotswap/v1/commit"
        )
    return serving.follower
