from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from hotswap.http import Kind, KindedRoute
from hotswap.http.app import core_routes
from hotswap.http.gate import refusal
from hotswap.http.openai import openai_routes
from hotswap.plugins import Plugins

GATED = (Kind.UPDATE, Kind.CONTROL, Kind.LOOKUP)
BODIES = {
    "/v1/completions": {"prompt": "a"},
    "/generate": {"text": "a"},
    "/submit": {"text": "a"},
    "/submit_many": {"requests": [{"text": "a"}]},
    "/cancel": {"request_id": "nobody"},
    "/update_weights_from_disk": {"model_path": "/b"},
    # A list without tensors.
    "/update_weights_from_tensor": {"serialized_named_tensors": ["gARdlC4="]},
    "/hotswap/v1/commit": {"update_id": "nobody"},
    "/get_weights_by_name": {"name": "embed.weight"},
    "/update_weight_version": {"new_version": "8"},
    "/pull_weights": {"local_checkpoint_dir": "/l", "source_dir": "/s", "target_version": 1},
}
# Where it is not 200: most often no request has the id that is asked for.
ANSWERS = {
    "/submit": 202,
    "/submit_many": 202,
    "/cancel": 404,
    # The model of these tests lies nowhere, and is version 0.
    "/pull_weights": 409,
    "/hotswap/v1/commit": 409,
    # It follows nothing.
    "/hotswap/v1/follow/notice": 404,
    # An empty object describes no shared memory.
    "/hotswap/v1/push": 400,
    "/poll/{request_id:path}": 404,
    "/result/{request_id:path}": 404,
    "/requests/{request_id:path}": 404,
}

# They want a model that has that name, or a chat template, or have no end: see their tests.
ELSEWHERE = {"/v1/models/{model:path}", "/v1/chat/completions", "/hotswap/v1/events"}
# What has to have gone before.
FIRST = {"/end_weight_update": "/begin_weight_update"}


def calls_of(*kinds: Kind) -> list[Any]:
    return [
        pytest.param(method, route.path, id=f"{method} {route.path}")
        for route in core_routes()
        for method in sorted(route.methods or ())
        if route.kind in kinds and method != "HEAD" and route.path not in ELSEWHERE
    ]


async def call(serving: Any, method: str, path: str) -> httpx.Response:
    reply: httpx.Response = await serving.client.request(method, path, json=BODIES.get(path, {}))
    return reply


@pytest.mark.parametrize(("method", "path"), calls_of(*GATED))
async def test_a_gated_route_is_refused_by_default(serve: Any, method: str, path: str) -> None:
    serving = serve(allow_weight_update=False)
    reply = await call(serving, method, path)

    assert reply.status_code == 403
    error = reply.json()["error"]
    assert error["code"] == "route_disabled"
    assert error["retryable"] is False
    assert "--allow-weight-update" in error["message"]
    assert serving.commands.calls == []


@pytest.mark.parametrize(("method", "path"), calls_of(Kind.GENERATE, Kind.OPEN))
async def test_an_open_route_answers_by_default(serve: Any, method: str, path: str) -> None:
    reply = await call(serve(allow_weight_update=False), method, path)
    assert reply.status_code == ANSWERS.get(path, 200)


@pytest.mark.parametrize(("method", "path"), calls_of(*Kind))
async def test_every_route_answers_when_updates_are_allowed(
    serving: Any, method: str, path: str
) -> None:
    if path in FIRST:
        await call(serving, "POST", FIRST[path])
    assert (await call(serving, method, path)).status_code == ANSWERS.get(path, 200)


def test_the_open_routes_are_those_that_were_meant_to_be() -> None:
    assert {route.path for route in core_routes() if route.kind not in GATED} == {
        "/generate",
        "/submit",
        "/submit_many",
        "/poll/{request_id:path}",
        "/result/{request_id:path}",
        "/cancel",
        "/requests",
        "/requests/{request_id:path}",
        "/abort_request",
        "/flush_cache",
        "/health",
        "/ready",
        "/status",
        "/model_info",
        "/get_model_info",
        "/health_generate",
        "/ping",
        "/server_info",
        "/get_server_info",
        "/v1/loads",
        "/get_load",
        "/openapi.json",
        "/hotswap/v1/state",
        "/hotswap/v1/events",
        "/metrics",
        "/metrics/prometheus",
        *(route.path for route in openai_routes()),
    }


async def brought(_request: Request) -> Response:
    return PlainTextResponse("ran")


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("path", ["/plain", "/sub/inner"])
async def test_a_route_without_a_kind_never_runs(serve: Any, allowed: bool, path: str) -> None:
    routes = (Route("/plain", brought), Mount("/sub", routes=[Route("/inner", brought)]))
    serving = serve(allow_weight_update=allowed, plugins=Plugins(routes=routes))
    status, body = await serving.json("GET", path)

    assert (status, body["error"]["code"]) == (403, "route_disabled")
    assert "no kind" in body["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "allowed", "status"),
    [(Kind.UPDATE, True, 200), (Kind.UPDATE, False, 403), (Kind.OPEN, False, 200)],
)
async def test_a_plugin_s_route_is_judged_by_its_kind(
    serve: Any, kind: Kind, allowed: bool, status: int
) -> None:
    route = KindedRoute("/brought", brought, kind=kind, methods=["POST"])
    serving = serve(allow_weight_update=allowed, plugins=Plugins(routes=(route,)))

    assert (await serving.client.post("/brought")).status_code == status


async def test_a_plugin_cannot_open_a_core_route(serve: Any) -> None:
    route = KindedRoute("/pause_generation", brought, kind=Kind.OPEN, methods=["POST"])
    serving = serve(allow_weight_update=False, plugins=Plugins(routes=(route,)))

    assert (await serving.client.post("/pause_generation")).status_code == 403


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/nope", ""),
        ("/pause_generation/", "did you mean /pause_generation? "),
        ("/pause_genration", "did you mean /pause_generation? "),
        ("//host/pause_generation/", "did you mean /pause_generation? "),
        ("/", ""),
    ],
)
async def test_an_unknown_path_is_a_404(serve: Any, allowed: bool, path: str, meant: str) -> None:
    serving = serve(allow_weight_update=allowed)
    reply = await serving.client.post(path)

    assert reply.status_code == 404
    # A client reads what is between two slashes and the next as a host.
    seen = f"Not Found: {path.removeprefix('//host')!r} is no route of this server; "
    told = f"{seen}{meant}GET /openapi.json lists them"
    assert reply.json() == {
        "error": {"code": "not_found", "message": told, "retryable": False, "status": 404}
    }


async def test_a_long_path_is_not_repeated(serve: Any) -> None:
    reply = await serve().client.get(f"/{'x' * 5000}")

    assert reply.status_code == 404
    assert len(reply.json()["error"]["message"]) < 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/pause_generation"), ("DELETE", "/flush_cache"), ("POST", "/health")],
)
async def test_a_wrong_method_is_a_405(serving: Any, method: str, path: str) -> None:
    reply = await serving.client.request(method, path)

    assert reply.status_code == 405
    allowed = reply.headers["allow"].replace(", ", " or ")
    assert reply.json()["error"]["message"].endswith(f"; send {allowed}")
    assert reply.json()["error"]["code"] == "method_not_allowed"
    assert reply.headers["allow"]


def test_kinds_and_reasons() -> None:
    for kind in Kind:
        assert refusal(kind, allow_weight_update=True) is None
        assert (refusal(kind, allow_weight_update=False) is not None) == (kind in GATED)
    assert refusal(None, allow_weight_update=True) is not None


def test_repr_of_a_route() -> None:
    route = KindedRoute("/p", brought, kind=Kind.UPDATE, methods=["POST"])

    assert repr(route) == "<KindedRoute POST /p update>"
