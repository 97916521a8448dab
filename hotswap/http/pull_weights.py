"""``/pull_weights``: bring a directory beside the server to a published version."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import RequestInvalid
from hotswap.http.json_body import arguments
from hotswap.http.replies import Json
from hotswap.http.served import served
from hotswap.object_url import is_url
from hotswap.stream import PullReport

__all__ = ["PullBody", "pull_weights"]

_MAX_VERSION = 10**18 - 1
"""What the indexes of published versions can spell."""


class PullBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/pull_weights``: bring ``local_checkpoint_dir`` to version ``target_version`` of the
    versions below ``source_dir``; 0 is the checkpoint that the server was started with.
    ``check``: read all of the directory first, and make it anew when it is damaged."""

    local_checkpoint_dir: str
    source_dir: str
    target_version: Annotated[int, Meta(ge=0, le=_MAX_VERSION)]
    check: bool = False

    def check_directories(self) -> None:
        """Raises: RequestInvalid for what can be no directory, nor a URL where one may be."""
        if is_url(self.local_checkpoint_dir):
            raise RequestInvalid("local_checkpoint_dir is a URL, wanted a directory of the server")
        for name in ("local_checkpoint_dir", "source_dir"):
            path = getattr(self, name)
            if is_url(path):
                continue  # the pull judges it, and repeats no password
            if not path.strip() or "\0" in path:
                raise RequestInvalid(f"{name} is {path!r:.80}, wanted a directory of the server")


async def pull_weights(request: Request) -> Response:
    """Bring a local checkpoint to a published version; the live weights stay what they are."""
    serving = served(request)
    body = await arguments(request, PullBody, limit_bytes=serving.settings.max_http_request_bytes)
    body.check_directories()
    pull = partial(
        serving.puller.pull,
        body.local_checkpoint_dir,
        body.source_dir,
        body.target_version,
        check=body.check,
    )
    return Json(_shown(await until_disconnect(request.receive, pull)))


def _shown(report: PullReport) -> dict[str, object]:
    return {
        "success": True,
        "message": "Success.",
        "error_message": None,
        "mode": report.mode,
        "local_version": report.version,
        "start_version": report.start,
        "versions": report.versions,
        "aggregate": report.aggregate,
        "reason": report.reason,
        "read_bytes": report.read_bytes,
        "written_bytes": report.written_bytes,
        "seconds": report.seconds,
    }
