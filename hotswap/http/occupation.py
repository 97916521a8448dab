"""Give memory back to whoever trains on the same machine, and take it again.

The routes that trainers send around a push. The tags are SGLang's; the graphs of a server on
CUDA hold the addresses of its weights, so they go and come with those.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import RequestInvalid
from hotswap.http.json_body import arguments
from hotswap.http.replies import Json
from hotswap.http.routes import Kind, KindedRoute
from hotswap.http.schemas import pause_mode
from hotswap.http.served import MovedMemory, served
from hotswap.types import PauseMode

__all__ = ["PostProcessBody", "ReleaseBody", "ResumeBody", "occupation_routes"]

Tag: TypeAlias = Literal["weights", "kv_cache", "cuda_graph"]

_ALL: tuple[Tag, ...] = ("weights", "kv_cache", "cuda_graph")


class ReleaseBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/release_memory_occupation``; no tags are all tags."""

    tags: list[Tag] = []
    abort_all_requests: bool = False
    pause_mode: str | None = None

    def wanted(self) -> frozenset[str]:
        """The tags."""
        return frozenset(self.tags or _ALL)

    def mode(self) -> PauseMode | None:
        """How requests in flight are met. Raises: RequestInvalid."""
        if self.abort_all_requests:
            return PauseMode.ABORT
        if self.pause_mode is None:
            return None
        mode = pause_mode(self.pause_mode, "pause_mode")
        if mode not in (PauseMode.ABORT, PauseMode.RETRACT):
            raise RequestInvalid(
                f'pause_mode is {mode.value!r}, wanted "abort" or "retract": memory goes, and '
                "keys and values with it"
            )
        return mode


class ResumeBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/resume_memory_occupation``; no tags are all tags."""

    tags: list[Tag] = []

    def wanted(self) -> frozenset[str]:
        """The tags."""
        return frozenset(self.tags or _ALL)


class PostProcessBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/post_process_weights``: what slime sends around a push to quantised weights."""

    restore_weights_before_load: bool = False
    post_process_quantization: bool = False


def occupation_routes() -> list[KindedRoute]:
    """Release, resume, and what slime sends around both."""
    control = partial(KindedRoute, kind=Kind.CONTROL)
    either = ["GET", "POST"]
    return [
        control(
            "/release_memory_occupation",
            release_memory_occupation,
            methods=either,
            body=ReleaseBody,
        ),
        control(
            "/resume_memory_occupation", resume_memory_occupation, methods=either, body=ResumeBody
        ),
        control(
            "/post_process_weights", post_process_weights, methods=["POST"], body=PostProcessBody
        ),
    ]


async def release_memory_occupation(request: Request) -> Response:
    """Give memory back to the system; what is released already stays so."""
    serving = served(request)
    body = await arguments(
        request, ReleaseBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    sleep = partial(serving.commands.memory.sleep, body.wanted(), pause_mode=body.mode())
    moved = await until_disconnect(request.receive, sleep)
    told = {"num_aborted_requests": moved.num_aborted, **_shown(moved, "Released")}
    return serving.dialect.memory_moved(told)


async def resume_memory_occupation(request: Request) -> Response:
    """Take memory again; weights that were released need a full update after it."""
    serving = served(request)
    body = await arguments(request, ResumeBody, limit_bytes=serving.settings.max_http_request_bytes)
    wake = partial(serving.commands.memory.wake, body.wanted())
    moved = await until_disconnect(request.receive, wake)
    return serving.dialect.memory_moved(_shown(moved, "Resumed"))


async def post_process_weights(request: Request) -> Response:
    """Say yes once no weights are being written: each update has done it already."""
    serving = served(request)
    await arguments(request, PostProcessBody, limit_bytes=serving.settings.max_http_request_bytes)
    # SGLang's waits for whoever writes, too. Nothing here is quantised, and what follows
    # a load has followed every commit.
    await until_disconnect(request.receive, serving.commands.writes.closed)
    return Json({"success": True, "message": "Success"})


def _shown(moved: MovedMemory, verb: str) -> dict[str, object]:
    names = ", ".join(sorted(moved.moved)) or "nothing, which was so already"
    return {
        "success": True,
        "message": f"{verb} {names}.",
        "tags": sorted(moved.moved),
        "released": sorted(moved.asleep),
    }
