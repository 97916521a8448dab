"""The document says what the routes say, and every route says something."""

import json
import re
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from hotswap.api_keys import ApiKey
from hotswap.http import Kind, KindedRoute
from hotswap.http.app import core_routes
from hotswap.http.openapi import document, summary_of
from hotswap.http.routes import PUBLIC_PATHS
from hotswap.plugins import Plugins

ROUTES = core_routes()


@pytest.mark.parametrize("route", ROUTES, ids=repr)
def test_every_route_is_documented(route: KindedRoute) -> None:
    """A new route needs a docstring, and ``body=`` with the struct that it reads."""
    assert re.fullmatch(r"\S.{8,}", summary_of(route)), "its endpoint needs a docstring"
    if {"POST", "PUT"} & set(route.methods or ()):
        assert route.body is not None, "give KindedRoute body=, NoBody for none"
    if route.body is not None:
        assert route.body.__doc__, f"{route.body.__name__} needs a docstring"
        assert not route.body.__doc__.startswith(f"{route.body.__name__}(")


async def shown(serving: Any, path: str = "/openapi.json") -> Any:
    reply: httpx.Response = await serving.client.get(path)
    assert reply.status_code == 200
    return reply.json()


async def test_every_route_and_method_is_in_the_document(serving: Any) -> None:
    paths = (await shown(serving))["paths"]
    wanted = {
        (route.path_format, method.lower())
        for route in ROUTES
        for method in set(route.methods or ()) - {"HEAD"}
    }
    seen = {(path, method) for path, methods in paths.items() for method in methods}
    assert seen == wanted
    operations = [operation for methods in paths.values() for operation in methods.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z][A-Za-z0-9_]*", name) for name in ids)
    assert all(operation["summary"] for operation in operations)
    assert all(set(operation["responses"]) & {"200", "202"} for operation in operations)


async def test_bodies_are_the_structs(serving: Any) -> None:
    shown_document = await shown(serving)
    schemas = shown_document["components"]["schemas"]
    for route in ROUTES:
        for method in {"POST", "PUT"} & set(route.methods or ()):
            operation = shown_document["paths"][route.path_format][method.lower()]
            assert route.body is not None
            reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            fields = schemas[reference.rpartition("/")[2]]["properties"]
            assert list(fields) == list(route.body.__struct_encode_fields__)
    update = shown_document["paths"]["/update_weights_from_disk"]["post"]
    assert update["requestBody"]["required"] is False
    named = shown_document["paths"]["/get_weights_by_name"]
    assert named["post"]["requestBody"]["required"] is True
    by_name = {field["name"]: field for field in named["get"]["parameters"]}
    assert by_name["name"]["required"] is True
    assert by_name["truncate_size"]["schema"]["minimum"] == 0


async def test_every_reference_leads_somewhere(serving: Any) -> None:
    shown_document = await shown(serving)
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(shown_document)))
    assert names
    assert names <= set(shown_document["components"]["schemas"])


async def test_errors_follow_from_the_kind(serving: Any) -> None:
    paths = (await shown(serving))["paths"]

    assert set(paths["/health"]["get"]["responses"]) == {"200", "500", "503"}
    assert set(paths["/status"]["get"]["responses"]) == {"200", "401", "500"}
    update = set(paths["/update_weights_from_disk"]["post"]["responses"])
    assert update >= {"200", "400", "401", "403", "409", "413", "500"}
    assert set(paths["/generate"]["post"]["responses"]) >= {"200", "400", "413", "429", "503"}
    media = paths["/generate"]["post"]["responses"]["200"]["content"]
    assert set(media) == {"application/json", "text/event-stream"}


async def test_keys_are_told_of_and_the_document_asks_for_one(serve: Any) -> None:
    assert "security" not in json.dumps((await shown(serve()))["paths"])
    serving = serve(api_key=ApiKey("k3y"))
    assert (await serving.client.get("/openapi.json")).status_code == 401
    serving.client.headers["x-gr-api-key"] = "k3y"
    shown_document = await shown(serving)
    for path, methods in shown_document["paths"].items():
        for operation in methods.values():
            assert ("security" in operation) == (path not in PUBLIC_PATHS)
    assert set(shown_document["components"]["securitySchemes"]) == {"bearer", "gr"}
    assert "k3y" not in json.dumps(shown_document)


async def test_under_a_prefix_the_document_says_so(serve: Any) -> None:
    transport = httpx.ASGITransport(Starlette(routes=[Mount("/models/a", app=serve().app)]))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        shown_document = (await client.get("/models/a/openapi.json")).json()
    assert shown_document["servers"] == [{"url": "/models/a"}]
    assert "/health" in shown_document["paths"]


class Pushed(msgspec.Struct):
    """What a plug-in takes."""

    count: int


async def push(_request: Request) -> Response:
    """Push something
    somewhere.

    More of it.
    """
    return PlainTextResponse("")


async def test_routes_of_plugins_are_in_it(serve: Any) -> None:
    routes = (
        KindedRoute(
            "/push/{n:int}/{x:float}", push, kind=Kind.UPDATE, methods=["PUT"], body=Pushed
        ),
        KindedRoute("/bare/{name}", push, kind=Kind.OPEN, methods=["POST"], errors=[418]),
        KindedRoute("/health", push, kind=Kind.OPEN, methods=["GET"]),
        Route("/plain", push),
    )
    paths = (await shown(serve(plugins=Plugins(routes=routes))))["paths"]

    operation = paths["/push/{n}/{x}"]["put"]
    assert operation["summary"] == "Push something somewhere."
    assert [field["schema"]["type"] for field in operation["parameters"]] == ["integer", "number"]
    assert operation["requestBody"]["required"] is True
    assert "requestBody" not in paths["/bare/{name}"]["post"]
    assert {"404", "418"} <= set(paths["/bare/{name}"]["post"]["responses"])
    assert paths["/health"]["get"]["summary"] != operation["summary"]
    assert "/plain" not in paths


def test_a_route_without_a_docstring_has_an_empty_summary() -> None:
    async def silent(_request: Request) -> Response:
        return PlainTextResponse("")

    route = KindedRoute("/x", silent, kind=Kind.OPEN, methods=["GET"])
    assert summary_of(route) == ""
    assert document([route])["paths"]
