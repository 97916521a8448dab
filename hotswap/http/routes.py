"""Routes that say what they do, so that one gate can judge them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

__all__ = ["Kind", "KindedRoute", "kind_of", "matching_route"]


class Kind(StrEnum):
    """What a route does.

    ``update`` changes weights, ``control`` changes what the server does,
    ``lookup`` shows weights, ``generate`` runs the model, ``open`` is harmless.
    """

    UPDATE = "update"
    CONTROL = "control"
    LOOKUP = "lookup"
    GENERATE = "generate"
    OPEN = "open"


class KindedRoute(Route):
    """A Starlette route with a :class:`Kind`; a plug-in's routes are of this class."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        kind: Kind,
        methods: Sequence[str],
        name: str | None = None,
    ) -> None:
        super().__init__(path, endpoint, methods=list(methods), name=name)
        self.kind = kind

    def __repr__(self) -> str:
        methods = "/".join(sorted(self.methods or ()))
        return f"<KindedRoute {methods} {self.path} {self.kind}>"


def kind_of(route: BaseRoute | None) -> Kind | None:
    """The kind of a route, or None for one that has not said."""
    kind = getattr(route, "kind", None)
    return kind if isinstance(kind, Kind) else None


def matching_route(routes: Iterable[BaseRoute], scope: Scope) -> BaseRoute | None:
    """The route that Starlette's router would choose for ``scope``."""
    partial: BaseRoute | None = None
    for route in routes:
        match, _ = route.matches(scope)
        if match is Match.FULL:
            return route
        if match is Match.PARTIAL and partial is None:
            partial = route
    return partial
