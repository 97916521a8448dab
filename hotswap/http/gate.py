"""The gate: one place that decides whether a route may run. It denies by default.

=========================  =========================================
kind of the route          runs
=========================  =========================================
generate, open             always
update, control, lookup    with ``--allow-weight-update`` only
none given                 never
=========================  =========================================
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from hotswap.http.errors import RouteDisabled
from hotswap.http.routes import Kind, kind_of, matching_route

__all__ = ["Gate", "refusal"]

_ALWAYS = frozenset({Kind.GENERATE, Kind.OPEN})
_WITH_UPDATES = frozenset({Kind.UPDATE, Kind.CONTROL, Kind.LOOKUP})


def refusal(kind: Kind | None, *, allow_weight_update: bool) -> str | None:
    """Why a route of ``kind`` may not run, or None when it may."""
    if kind in _ALWAYS:
        return None
    if kind in _WITH_UPDATES:
        if allow_weight_update:
            return None
        return (
            f"{kind} routes are disabled on this server; start it with --allow-weight-update "
            "(or HOTSWAP_ALLOW_WEIGHT_UPDATE=1) to use them"
        )
    return "this route declares no kind and is refused; its author has to give it one"


class Gate:
    """Middleware that refuses every route that :func:`refusal` has a reason against.

    A path that no route serves goes on to the router, which answers 404.
    """

    def __init__(
        self, app: ASGIApp, *, routes: Sequence[BaseRoute], allow_weight_update: bool
    ) -> None:
        self._app = app
        self._routes = routes
        self._allow = allow_weight_update

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge the route that will run, and note its kind in the scope."""
        if scope["type"] in ("http", "websocket"):
            route = matching_route(self._routes, scope)
            if route is not None:
                kind = scope["hotswap.kind"] = kind_of(route)
                reason = refusal(kind, allow_weight_update=self._allow)
                if reason is not None:
                    raise RouteDisabled(reason)
        await self._app(scope, receive, send)
