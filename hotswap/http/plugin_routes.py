"""Routes of plug-ins, kept from ending the server, and named when they fail.

Rule: however the code of a route ends (``sys.exit()``, an exception class of its own, a
``CancelledError`` that nobody sent), that one request has failed. It is answered, the log has
the traceback, and the server goes on.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from hotswap.foreign import contained, on_a_thread
from hotswap.http.errors import INTERNAL, ClientGone, PluginRouteFailed, wire_of
from hotswap.plugins import Plugins

__all__ = ["plugin_routes"]


def plugin_routes(plugins: Plugins) -> list[BaseRoute]:
    """The routes of ``plugins``, each a copy that fails as this module says."""
    owners = {path: plugin.name for plugin in plugins.dists for path in plugin.routes}
    return [
        _guarded(route, owners.get(getattr(route, "path", ""), "(unknown)"))
        for route in plugins.routes
    ]


def _guarded(route: BaseRoute, plugin: str) -> BaseRoute:
    app = getattr(route, "app", None)
    if app is None:
        return route
    guarded: Any = copy.copy(route)
    endpoint: Any = getattr(route, "endpoint", None)
    if _is_function(endpoint):
        app = request_response(_with_contained_body(endpoint))
    guarded.app = _Guarded(app, plugin=plugin, path=getattr(route, "path", ""))
    kept: BaseRoute = guarded
    return kept


class _Guarded:
    """The app of one route of a plug-in."""

    def __init__(self, app: ASGIApp, *, plugin: str, path: str) -> None:
        self._app = app
        self._plugin = plugin
        self._path = path

    def __repr__(self) -> str:
        return f"<_Guarded {self._path} of {self._plugin}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run it. Raises: PluginRouteFailed for what no table knows."""
        try:
            with contained():
                await self._app(scope, receive, send)
        except ClientGone:
            raise
        except Exception as error:
            if wire_of(error) is not INTERNAL:
                raise
            raise PluginRouteFailed(plugin=self._plugin, path=self._path) from error


def _with_contained_body(endpoint: Callable[..., Any]) -> Callable[[Request], Any]:
    """``endpoint``, whose streamed replies fail in a way that ends no event loop: Starlette
    reads them in a task of its own."""

    async def run(request: Request) -> Response:
        if inspect.iscoroutinefunction(_unwrapped(endpoint)):
            response: Any = await endpoint(request)
        else:
            response = await run_in_threadpool(on_a_thread, endpoint, request)
        pieces = getattr(response, "body_iterator", None)
        if pieces is not None:
            response.body_iterator = _Pieces(pieces)
        found: Response = response
        return found

    return functools.update_wrapper(run, _unwrapped(endpoint))


class _Pieces:
    """The pieces of a reply as they come."""

    def __init__(self, pieces: AsyncIterable[Any]) -> None:
        self._pieces: AsyncIterator[Any] = aiter(pieces)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        with contained():
            return await anext(self._pieces)


def _is_function(endpoint: object) -> bool:
    found = _unwrapped(endpoint)
    return inspect.isfunction(found) or inspect.ismethod(found)


def _unwrapped(endpoint: Any) -> Any:
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    return endpoint
