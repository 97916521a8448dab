"""The gate: one place that decides whether a route may run. It denies by default.

=========================  =========================================
kind of the route          runs
=========================  =========================================
generate, open             always
update, control, lookup    with ``--allow-weight-update`` only
none given                 never
=========================  =========================================

On a server with keys a request has to bring the right one first (:mod:`hotswap.http.keys`),
whatever it asks for, whether such a route exists or not. Only the probes are open.
"""

from __future__ import annotations

from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from hotswap.http.errors import RequestError, RouteDisabled
from hotswap.http.keys import Keys
from hotswap.http.routes import Kind, is_public, kind_of, level_of, matching_route

__all__ = ["Gate", "refusal"]

_ALWAYS = frozenset({Kind.GENERATE, Kind.OPEN})
_WITH_UPDATES = frozenset({Kind.UPDATE, Kind.CONTROL, Kind.LOOKUP})

# RFC 6455's code for a connection that is not wanted.
_POLICY_VIOLATION = 1008


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
    """Middleware that judges the very route that the router will choose, and no path.

    A path that no route serves goes on to the router, which answers 404.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        allow_weight_update: bool,
        keys: Keys,
    ) -> None:
        self._app = app
        self._allow = allow_weight_update
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge the route that will run; note it and its kind in the scope."""
        if scope["type"] in ("http", "websocket"):
            # The app's own list: a route that was added later is judged as well.
            route = matching_route(scope["app"].routes, scope)
            try:
                self._judge(route, scope)
            except RequestError:
                if scope["type"] == "http":
                    raise
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
                return
        await self._app(scope, receive, send)

    def _judge(self, route: BaseRoute | None, scope: Scope) -> None:
        """Raises: Unauthorized, Forbidden, RouteDisabled."""
        if not is_public(route):
            # Before anything of the route is noted: a refusal must not depend on it.
            self._keys.check(level_of(route), scope["headers"])
        if route is None:
            return
        scope["hotswap.route"] = route
        kind = scope["hotswap.kind"] = kind_of(route)
        reason = refusal(kind, allow_weight_update=self._allow)
        if reason is not None:
            raise RouteDisabled(reason)
