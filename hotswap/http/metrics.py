"""``/metrics``, and the middleware that counts responses."""

from __future__ import annotations

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotswap.http.served import served
from hotswap.metrics.exposition import CONTENT_TYPE
from hotswap.metrics.responses import ResponseMetrics

__all__ = ["CountResponses", "metrics"]

_SCRAPE_S = 10.0


async def metrics(request: Request) -> Response:
    """One scrape: never waits for the engine, nor for a command.

    On a worker thread of its own, so that a plug-in's slow collector holds up neither
    the event loop nor an update; 503 when it takes longer than a scrape may.
    """
    serving = served(request)
    with anyio.move_on_after(_SCRAPE_S):
        text = await anyio.to_thread.run_sync(
            serving.observation.exposition.render,
            limiter=serving.scrapers,
            abandon_on_cancel=True,
        )
        return Response(text, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})
    return Response(
        f"# no metrics within {_SCRAPE_S:g} s: a plug-in's collector is slow\n",
        status_code=503,
        media_type="text/plain",
    )


class CountResponses:
    """Middleware: counts each response by its route's template, once it begins."""

    def __init__(self, app: ASGIApp, *, responses: ResponseMetrics) -> None:
        self._app = app
        self._responses = responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Noted by the gate. What a client wrote into the path is no label.
                route = getattr(scope.get("hotswap.route"), "path", None)
                self._responses.note(route=route, method=scope["method"], status=message["status"])
            await send(message)

        await self._app(scope, receive, send_counted)
