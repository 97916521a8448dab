"""``POST /hotswap/v1/disk/check``: would an update from this directory be taken?"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hotswap.errors import UpdateRejected
from hotswap.fetch import opened
from hotswap.foreign import words_of
from hotswap.http import Kind, KindedRoute
from hotswap.http.json_body import arguments
from hotswap.http.replies import Json
from hotswap.http.served import served
from hotswap.types import Scope, Update
from hotswap.uninterrupted import on_worker_thread
from hotswap_disk.strategy import DiskStrategy

__all__ = ["CHECK", "CheckBody"]


class CheckBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/hotswap/v1/disk/check``."""

    model_path: str


async def check(request: Request) -> Response:
    """Say whether a directory is a checkpoint that an update would take, and why not.

    Opens it and compares every header with the live model; reads no tensor, pauses nothing.
    """
    serving = served(request)
    limit_bytes = serving.settings.max_http_request_bytes
    body = await arguments(request, CheckBody, limit_bytes=limit_bytes)
    strategy = DiskStrategy.from_options(serving.settings.plugin_options)
    try:
        update = Update(source=body.model_path)
        async with opened(strategy, update, serving.placement) as stage:
            plan = await on_worker_thread(serving.engine.plan, stage.manifest, Scope.FULL)
            found: dict[str, object] = {
                "loadable": True,
                "reason": None,
                "tensors": len(plan.specs),
                "bytes": stage.manifest.size_bytes,
                "unknown": plan.unknown,
            }
    except UpdateRejected as error:
        found = {"loadable": False, "reason": words_of(error)}
    return Json(found)


CHECK = KindedRoute(
    "/hotswap/v1/disk/check", check, kind=Kind.LOOKUP, methods=["POST"], body=CheckBody
)
"""The route. Looking into directories of the server is for whoever may update it."""
