"""Routes of plug-ins that fail: a reply that names the plug-in, and a server that goes on."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from starlette.background import BackgroundTask
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute

from hotswap.http import Kind, KindedRoute
from hotswap.plugins import LoadedPlugin, Plugins
from hotswap.testing.endings import ENDINGS
from tests.unit.http.conftest import Serving

Endpoint = Callable[[Request], Awaitable[Response] | Response]
NAME = "hotswap-toy"


def plugins_with(*endpoints: tuple[str, Endpoint | type]) -> Plugins:
    routes: tuple[BaseRoute, ...] = tuple(
        KindedRoute(path, endpoint, kind=Kind.OPEN, methods=["GET"]) for path, endpoint in endpoints
    )
    brought = LoadedPlugin(
        name=NAME,
        version="1",
        module="toy",
        hooks=("hotswap_routes",),
        strategies=(),
        routes=tuple(path for path, _ in endpoints),
    )
    return Plugins(routes=routes, dists=(brought,))


def failing(raised: Callable[[], BaseException]) -> dict[str, Endpoint | type]:
    """Endpoints that end so, before their reply has begun."""

    async def waits(request: Request) -> Response:
        raise raised()

    def blocks(request: Request) -> Response:
        raise raised()

    async def with_more(more: int, request: Request) -> Response:
        raise raised()

    class Page(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            raise raised()

    class Says:
        def __str__(self) -> str:
            raise raised()

    async def replies_with_it(request: Request) -> Response:
        return PlainTextResponse(f"{Says()}")

    return {
        "/waits": waits,
        "/blocks": blocks,
        "/partial": functools.partial(with_more, 7),
        "/page": Page,
        "/replies": replies_with_it,
    }


@pytest.mark.parametrize("ending", [*ENDINGS, "ValueError"])
async def test_a_route_that_ends_in_any_way_is_a_500_that_names_the_plugin(
    serve: Callable[..., Serving], caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    endpoints = failing(ENDINGS.get(ending, lambda: ValueError("secret of the inside")))
    serving = serve(plugins=plugins_with(*endpoints.items()))
    for path in endpoints:
        caplog.clear()
        status, body = await serving.json("GET", path)
        assert (status, body["error"]["code"]) == (500, "internal_error")
        assert f"the route {path} of the plug-in {NAME} failed" in body["error"]["message"]
        assert "secret of the inside" not in body["error"]["message"]
        [record] = [one for one in caplog.records if one.name == "hotswap.http"]
        assert record.levelno == logging.ERROR
        assert f"GET {path}: the route {path} of the plug-in {NAME}" in record.getMessage()
        assert record.exc_info is not None
        assert ending in caplog.text
    assert (await serving.json("GET", "/status"))[0] == 200


async def test_sglangs_envelope_names_it_too(serve: Callable[..., Serving]) -> None:
    serving = serve(plugins=plugins_with(*failing(lambda: SystemExit(3)).items()), dialect="sglang")
    status, body = await serving.json("GET", "/waits")
    assert (status, body["object"]) == (500, "error")
    assert NAME in body["message"]


async def test_what_a_route_says_on_purpose_is_its_own(serve: Callable[..., Serving]) -> None:
    async def teapot(request: Request) -> Response:
        raise HTTPException(418, "short and stout")

    async def fine(request: Request) -> Response:
        return JSONResponse({"path": request.url.path})

    def stream() -> Iterator[bytes]:
        yield b"a"
        yield b"b"

    async def streams(request: Request) -> Response:
        return StreamingResponse(stream())

    serving = serve(
        plugins=plugins_with(("/teapot", teapot), ("/fine", fine), ("/streams", streams))
    )
    status, body = await serving.json("GET", "/teapot")
    assert (status, body["error"]["message"]) == (418, "short and stout")
    assert await serving.json("GET", "/fine") == (200, {"path": "/fine"})
    assert (await serving.client.get("/streams")).text == "ab"


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_stream_that_ends_so_breaks_its_own_connection(
    serve: Callable[..., Serving], ending: str
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"begun"
        raise ENDINGS[ending]()

    async def streams(request: Request) -> Response:
        return StreamingResponse(pieces())

    def after() -> None:
        raise ENDINGS[ending]()

    async def then_more(request: Request) -> Response:
        return PlainTextResponse("done", background=BackgroundTask(after))

    serving = serve(plugins=plugins_with(("/streams", streams), ("/more", then_more)))
    for path in ("/streams", "/more"):
        # The server breaks the connection at an Exception; anything else would break the server.
        with pytest.raises(Exception, match=NAME) as caught:
            await serving.client.get(path)
        assert isinstance(caught.value, Exception)
    assert (await serving.json("GET", "/status"))[0] == 200


async def test_a_client_that_goes_away_still_cancels_its_route(
    serve: Callable[..., Serving],
) -> None:
    begun, ended = asyncio.Event(), list[str]()

    async def waits(request: Request) -> Response:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return Response()

    serving = serve(plugins=plugins_with(("/waits", waits)))

    async def ask() -> None:
        await serving.client.get("/waits")

    task = asyncio.get_running_loop().create_task(ask())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


async def test_a_route_of_ours_that_meets_such_an_engine_is_a_500(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(request: object) -> object:
        raise SystemExit(3)

    monkeypatch.setattr(serving.engine, "submit", submit)
    for path, body in (
        ("/generate", {"input_ids": [1]}),
        ("/generate", {"input_ids": [1], "stream": True}),
        ("/v1/completions", {"model": "a", "prompt": [1]}),
    ):
        reply = await serving.client.post(path, json=body)
        assert reply.status_code == 500
        assert "error" in reply.json()
    assert (await serving.json("GET", "/health"))[0] == 200


@pytest.mark.parametrize("attribute", ["__class__", "__traceback__", "__cause__", "__notes__"])
async def test_a_route_that_raises_what_cannot_be_looked_at_is_a_500_that_names_the_plugin(
    serve: Callable[..., Serving], attribute: str
) -> None:
    def read(self: object) -> object:
        raise SystemExit(attribute)

    hostile: type[Exception] = type("Hostile", (Exception,), {attribute: property(read)})
    endpoints = failing(lambda: hostile("mine"))
    serving = serve(plugins=plugins_with(*endpoints.items()))
    for path in endpoints:
        status, body = await serving.json("GET", path)
        assert (status, body["error"]["code"]) == (500, "internal_error")
        assert f"the route {path} of the plug-in {NAME} failed" in body["error"]["message"]
    assert (await serving.json("GET", "/status"))[0] == 200
