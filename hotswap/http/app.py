"""Put the app together: the route table, the gate, the error envelope."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from hotswap.follow import Follower
from hotswap.http import control, native, requests, schemas
from hotswap.http.body_limit import BodyLimit
from hotswap.http.envelope import ErrorEnvelope, error_reply
from hotswap.http.events import Events
from hotswap.http.gate import Gate
from hotswap.http.generation import Generate
from hotswap.http.half_sent import HalfSent
from hotswap.http.keys import Keys
from hotswap.http.metrics import CountResponses, metrics
from hotswap.http.openai import OpenAiEnvelope, known_at_start, openai_reply, openai_routes
from hotswap.http.openapi import openapi
from hotswap.http.plugin_routes import plugin_routes
from hotswap.http.routes import Kind, KindedRoute, Level
from hotswap.http.served import Commands, Served
from hotswap.http.single_process import refuse_many_workers
from hotswap.http.unknown_paths import no_such_path
from hotswap.http.unread import CloseUnread
from hotswap.http.weight_routes import introspection_routes, weight_routes
from hotswap.plugins import Plugins
from hotswap.pulls import Puller
from hotswap.seams import Engine, LoadStrategy
from hotswap.settings import Settings
from hotswap.types import Placement

__all__ = ["core_routes", "create_app"]


def core_routes() -> list[KindedRoute]:
    """Every route of the core, each with its kind."""
    return [
        KindedRoute(
            "/generate",
            Generate(),
            kind=Kind.GENERATE,
            methods=["POST", "PUT"],
            body=schemas.GenerateBody,
            answers={200: ("application/json", "text/event-stream")},
            errors=(504,),
        ),
        *requests.routes(),
        KindedRoute(
            "/pause_generation",
            control.pause_generation,
            kind=Kind.CONTROL,
            methods=["POST"],
            body=schemas.PauseBody,
        ),
        KindedRoute(
            "/continue_generation",
            control.continue_generation,
            kind=Kind.CONTROL,
            methods=["POST"],
            body=schemas.NoBody,
        ),
        KindedRoute(
            "/flush_cache",
            control.flush_cache,
            kind=Kind.OPEN,
            methods=["GET", "POST"],
            body=schemas.FlushBody,
            answers={200: ("application/json", "text/plain")},
            level=Level.ADMIN_OPTIONAL,
        ),
        *weight_routes(),
        *introspection_routes(),
        KindedRoute("/hotswap/v1/state", native.state, kind=Kind.OPEN, methods=["GET"]),
        KindedRoute(
            "/hotswap/v1/events",
            Events(),
            kind=Kind.OPEN,
            methods=["GET"],
            answers={200: ("text/event-stream",)},
            errors=(503,),
        ),
        *(
            KindedRoute(
                path, metrics, kind=Kind.OPEN, methods=["GET"], answers={200: ("text/plain",)}
            )
            for path in ("/metrics", "/metrics/prometheus")
        ),
        KindedRoute("/openapi.json", openapi, kind=Kind.OPEN, methods=["GET"]),
        *openai_routes(),
    ]


def create_app(
    commands: Commands,
    engine: Engine,
    settings: Settings,
    *,
    plugins: Plugins,
    placement: Placement | None = None,
    puller: Puller | None = None,
    follower: Follower | None = None,
    strategies: Mapping[str, LoadStrategy] | None = None,
) -> Starlette:
    """An ASGI app for one engine; it can be mounted under a prefix in another app.

    ``puller`` None makes one of the settings, with the model's directory as it is now as
    version 0. What those of ``strategies`` pull that have a ``puller`` is told of as its own
    pulls are; so are those of ``follower``, which is for the caller to enter. Raises: ValueError
    when that is not possible.

    ``app.state.served`` is what its routes talk to; call its ``begin_shutdown`` to
    abort what is in flight before a shutdown, and ``end_shutdown`` once nothing happens
    any more.
    """
    served = Served(
        commands=commands,
        engine=engine,
        settings=settings,
        follower=follower,
        puller=puller or Puller.from_options(settings.option_values, hooks=plugins.pre_read),
        plugins=plugins,
        placement=placement or Placement(),
    )
    served.puller.relay_all([*(strategies or {}).values(), follower])
    routes: Sequence[BaseRoute] = [*core_routes(), *plugin_routes(plugins)]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(CloseUnread, requests=served.requests),
            Middleware(CountResponses, responses=served.observation.responses),
            Middleware(ErrorEnvelope, dialect=served.dialect),
            Middleware(OpenAiEnvelope, routes=openai_routes()),
            Middleware(HalfSent, requests=served.requests),
            Middleware(
                Gate,
                allow_weight_update=settings.allow_weight_update,
                keys=Keys(api=settings.api_key, admin=settings.admin_api_key),
            ),
            Middleware(BodyLimit, limit_bytes=settings.max_http_request_bytes),
        ],
        exception_handlers={HTTPException: _http_exception},
        lifespan=_lifespan,
    )
    # A redirect would answer for a path that the gate has not judged.
    app.router.redirect_slashes = False
    app.state.served = served
    app.state.openai = known_at_start(settings)
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    refuse_many_workers()
    yield
    # For embedders whose server ends here before it lets connections go.
    served: Served = app.state.served
    served.begin_shutdown()
    served.end_shutdown()


async def _http_exception(request: Request, error: Exception) -> Response:
    if "hotswap.route" not in request.scope and getattr(error, "status_code", None) == 404:
        # As the routes have it, under whatever prefix this app is mounted.
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        error = no_such_path(path, request.app.routes)
    if "hotswap.openai" in request.scope:
        return openai_reply(error)
    served: Served = request.app.state.served
    return error_reply(error, dialect=served.dialect, kind=request.scope.get("hotswap.kind"))
