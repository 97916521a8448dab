"""Routes that say what they do, so that one gate can judge them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from hotswap.types import member

__all__ = [
    "PUBLIC_PATHS",
    "Kind",
    "KindedRoute",
    "Level",
    "is_public",
    "kind_of",
    "level_of",
    "matching_route",
]

PUBLIC_PATHS = frozenset({"/health", "/health_generate", "/ready", "/ping"})
"""Probes: the only paths that no key is asked for."""


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


class Level(Enum):
    """How far from everybody a route is kept on a server that has keys.

    NORMAL is for whoever may generate, ADMIN_OPTIONAL for whoever may change the
    server, ADMIN_FORCE only for the holder of an admin key.
    """

    NORMAL = "normal"
    ADMIN_OPTIONAL = "admin_optional"
    ADMIN_FORCE = "admin_force"


_JSON_ANSWER: Mapping[int, Sequence[str]] = MappingProxyType({200: ("application/json",)})


class KindedRoute(Route):
    """A Starlette route with a :class:`Kind`; a plug-in's routes are of this class.

    ``level`` is the key it asks for, where the kind does not say it. ``streams_upload``
    lifts ``--max-http-request-bytes``: the route reads its body piece by piece and keeps
    its own bound. For the OpenAPI document: ``body`` is the struct that its arguments are
    read as (``NoBody`` for none), ``answers`` has the media types of each status that is no
    error, ``errors`` the statuses that its kind does not imply.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        kind: Kind,
        methods: Sequence[str],
        name: str | None = None,
        body: type[msgspec.Struct] | None = None,
        answers: Mapping[int, Sequence[str]] = _JSON_ANSWER,
        errors: Sequence[int] = (),
        level: Level | None = None,
        streams_upload: bool = False,
    ) -> None:
        super().__init__(path, endpoint, methods=list(methods), name=name)
        # Starlette's "$" lets a path end in a newline that no proxy in front has seen as its end.
        pattern = self.path_regex.pattern.removesuffix("$") + r"\Z"
        self.path_regex: re.Pattern[str] = re.compile(pattern)
        # By identity, or a level in text would be none, and the route as open as its kind.
        self.kind: Kind = member(Kind, kind, what="kind")
        self.body = body
        self.answers = answers
        self.errors = errors
        self.level: Level | None = None if level is None else member(Level, level, what="level")
        self.streams_upload = streams_upload

    def __repr__(self) -> str:
        methods = "/".join(sorted(self.methods or ()))
        return f"<KindedRoute {methods} {self.path} {self.kind}>"


def kind_of(route: BaseRoute | None) -> Kind | None:
    """The kind of a route, or None for one that has not said."""
    kind = getattr(route, "kind", None)
    return kind if isinstance(kind, Kind) else None


def level_of(route: BaseRoute | None) -> Level:
    """The key that a route asks for: what it says, else what its kind says.

    A path that no route serves is as any other: who has no key learns nothing. A route
    without a kind is kept as far away as one that changes weights.
    """
    said = getattr(route, "level", None)
    if isinstance(said, Level):
        return said
    if route is None or kind_of(route) in (Kind.GENERATE, Kind.OPEN):
        return Level.NORMAL
    return Level.ADMIN_OPTIONAL


def is_public(route: BaseRoute | None) -> bool:
    """Whether a route is one of the probes that need no key ever."""
    return kind_of(route) is Kind.OPEN and getattr(route, "path", None) in PUBLIC_PATHS


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
