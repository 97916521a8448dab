"""Routes that change what the server does: pause, continue, flush."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from hotswap.errors import HotswapError
from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import RequestError
from hotswap.http.json_body import arguments, converted, query_of, read_body
from hotswap.http.replies import Json
from hotswap.http.schemas import FlushBody, NoBody, PauseBody, pause_mode
from hotswap.http.served import served

__all__ = ["continue_generation", "flush_cache", "pause_generation"]


async def pause_generation(request: Request) -> Response:
    """Stop forward passes; ``mode`` says what becomes of requests in flight."""
    serving = served(request)
    body = await arguments(request, PauseBody, limit_bytes=serving.settings.max_http_request_bytes)
    mode = pause_mode(body.mode, "mode")
    report = await until_disconnect(request.receive, partial(serving.commands.pause, mode))
    return Json(
        {
            "paused": True,
            "mode": report.mode,
            "num_aborted_requests": report.num_aborted,
            "message": "Generation paused successfully.",
            "status": "ok",
        }
    )


async def continue_generation(request: Request) -> Response:
    """Open the gate; a no-op when it is open."""
    serving = served(request)
    await arguments(request, NoBody, limit_bytes=serving.settings.max_http_request_bytes)
    await until_disconnect(request.receive, serving.commands.resume)
    return Json({"paused": False, "message": "Generation continued successfully.", "status": "ok"})


async def flush_cache(request: Request) -> Response:
    """Drop cached prefixes at once, or say with a 400 why that is not possible now."""
    serving = served(request)
    try:
        # Trainers post the arguments of another route to it: only its query counts.
        await read_body(request.receive, limit_bytes=serving.settings.max_http_request_bytes)
        converted(query_of(request), FlushBody)
        cleared = await until_disconnect(request.receive, serving.commands.flush)
    except (HotswapError, RequestError) as error:
        return serving.dialect.flush_refused(error)
    return serving.dialect.flushed(cleared)
