"""The routes about weights, and those that say what server this is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hotswap.http import (
    probes,
    server_info,
    status,
    weight_session,
    weight_version,
    weights,
    weights_checker,
)
from hotswap.http.follow import NoticeBody, notice
from hotswap.http.occupation import occupation_routes
from hotswap.http.pull_weights import PullBody, pull_weights
from hotswap.http.push import push_route
from hotswap.http.push_bodies import (
    SessionAbortBody,
    SessionBeginBody,
    SessionBody,
    SessionCommitBody,
    TensorUpdateBody,
)
from hotswap.http.push_tensors import update_weights_from_tensor
from hotswap.http.routes import Kind, KindedRoute
from hotswap.http.schemas import (
    CheckerBody,
    DiskUpdateBody,
    NoBody,
    RelabelBody,
    WeightByNameBody,
)

__all__ = ["introspection_routes", "weight_routes"]

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def weight_routes() -> list[KindedRoute]:
    """Change the weights, name them, show them."""
    control = partial(KindedRoute, kind=Kind.CONTROL)
    lookup = partial(KindedRoute, kind=Kind.LOOKUP)
    post, get_or_post = ["POST"], ["GET", "POST"]
    update, relabel = weights.update_weights_from_disk, weight_version.update_weight_version
    show, check = weights.get_weights_by_name, weights_checker.weights_checker
    return [
        KindedRoute(
            "/update_weights_from_disk",
            update,
            kind=Kind.UPDATE,
            methods=post,
            body=DiskUpdateBody,
        ),
        KindedRoute(
            "/update_weights_from_tensor",
            update_weights_from_tensor,
            kind=Kind.UPDATE,
            methods=post,
            body=TensorUpdateBody,
        ),
        # It changes no weight: that is what the update from its directory does.
        control("/pull_weights", pull_weights, methods=post, body=PullBody),
        control("/update_weight_version", relabel, methods=post, body=RelabelBody),
        push_route(),
        *_session_routes(),
        control("/hotswap/v1/follow/notice", notice, methods=post, body=NoticeBody, errors=(404,)),
        *occupation_routes(),
        lookup("/get_weights_by_name", show, methods=get_or_post, body=WeightByNameBody),
        control("/weights_checker", check, methods=get_or_post, body=CheckerBody),
        *(
            lookup(path, weight_version.get_weight_version, methods=["GET"])
            for path in ("/get_weight_version", "/weight_version")
        ),
    ]


def _session_routes() -> list[KindedRoute]:
    """Of miles, whose chunks name no session, and hotswap's own, whose chunks do."""
    bodies: Mapping[str, tuple[Endpoint, type[msgspec.Struct]]] = {
        "/begin_weight_update": (weight_session.begin_weight_update, SessionBody),
        "/end_weight_update": (weight_session.end_weight_update, NoBody),
        "/hotswap/v1/begin": (weight_session.begin, SessionBeginBody),
        "/hotswap/v1/commit": (weight_session.commit, SessionCommitBody),
        "/hotswap/v1/abort": (weight_session.abort, SessionAbortBody),
    }
    return [
        KindedRoute(path, endpoint, kind=Kind.CONTROL, methods=["POST"], body=body)
        for path, (endpoint, body) in bodies.items()
    ]


def introspection_routes() -> list[KindedRoute]:
    """Say how the server is and what it runs; none of them waits for a command."""
    endpoints = {
        "/status": status.status,
        "/model_info": status.model_info,
        "/get_model_info": status.model_info,
        "/server_info": server_info.server_info,
        "/get_server_info": server_info.server_info,
        "/v1/loads": server_info.loads,
        "/get_load": server_info.get_load,
    }
    return [
        *_probes(),
        *(
            KindedRoute(path, endpoint, kind=Kind.OPEN, methods=["GET"])
            for path, endpoint in endpoints.items()
        ),
    ]


def _probes() -> list[KindedRoute]:
    """Their 503 is an answer, and not an error."""
    probes_of: Mapping[str, tuple[Endpoint, Sequence[str]]] = {
        "/health": (status.health, ("application/json", "text/plain")),
        "/ready": (status.ready, ("application/json",)),
        "/health_generate": (probes.health_generate, ()),
        "/ping": (probes.ping, ()),
    }
    return [
        KindedRoute(
            path, endpoint, kind=Kind.OPEN, methods=["GET"], answers={200: types, 503: types}
        )
        for path, (endpoint, types) in probes_of.items()
    ]
