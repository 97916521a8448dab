"""What every route makes of bodies, and what errors look like on the wire."""

import logging
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from hotswap.errors import HotswapError, PluginError, QueueFull
from hotswap.http.errors import wire_of


@pytest.mark.parametrize(
    "content",
    [b"", b"  \n", b"{}", b"null", b'{"mode": "abort"}', b'{"mode": null, "rid": "x", "new": [1]}'],
)
@pytest.mark.parametrize(
    "content_type", [None, "application/json", "text/plain", "application/x-www-form-urlencoded"]
)
async def test_lenient(serving: Any, content: bytes, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    reply = await serving.client.post("/pause_generation", content=content, headers=headers)

    assert reply.status_code == 200
    assert reply.json()["mode"] == "abort"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"{", "not JSON"),
        (b"mode=abort", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"mode": NaN}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "list"),
        (b'"abort"', "str"),
        (b"3", "int"),
        (b'{"mode": 3}', "$.mode"),
        (b'{"mode": ["abort"]}', "$.mode"),
    ],
)
async def test_not_lenient(serving: Any, content: bytes, named: str) -> None:
    reply = await serving.client.post("/pause_generation", content=content)

    assert reply.status_code == 400
    body = reply.json()
    assert body["error"]["code"] == "validation_error"
    assert named in body["error"]["message"]
    assert serving.commands.calls == []


async def test_the_body_wins_over_the_query(serving: Any) -> None:
    _, body = await serving.json(
        "POST", "/pause_generation", params={"mode": "retract"}, json={"mode": "in_place"}
    )
    assert body["mode"] == "in_place"

    _, body = await serving.json("POST", "/pause_generation", params={"mode": "retract"})
    assert body["mode"] == "retract"


async def test_a_long_body_is_a_413(serve: Any) -> None:
    serving = serve(max_http_request_bytes=1000)

    fits = await serving.client.post("/pause_generation", content=b" " * 1000)
    assert fits.status_code == 200

    async def chunks() -> Any:
        for _ in range(11):
            yield b" " * 100

    for content in (b" " * 1001, chunks()):
        reply = await serving.client.post("/pause_generation", content=content)
        assert reply.status_code == 413
        assert reply.json()["error"]["code"] == "payload_too_large"
        assert "--max-http-request-bytes" in reply.json()["error"]["message"]


async def test_an_unexpected_error_is_logged_and_not_shown(
    serving: Any, caplog: pytest.LogCaptureFixture
) -> None:
    serving.commands.refusal = ZeroDivisionError("a secret detail")
    with caplog.at_level(logging.ERROR, logger="hotswap.http"):
        reply = await serving.client.post("/pause_generation")

    assert reply.status_code == 500
    error = reply.json()["error"]
    assert (error["code"], error["retryable"]) == ("internal_error", False)
    assert "secret" not in reply.text
    assert "Traceback" not in reply.text
    assert "a secret detail" in caplog.text


def test_every_error_has_a_row() -> None:
    def below(kind: type[HotswapError]) -> list[type[HotswapError]]:
        return [kind, *(found for sub in kind.__subclasses__() for found in below(sub))]

    shown = set(below(HotswapError)) - {HotswapError, PluginError}
    for kind in shown:
        # A client's own errors are raised on the other side of the wire.
        own = kind.__module__.startswith("hotswap.client.")
        if kind.__module__.startswith("hotswap.") and not own:
            assert wire_of(kind("x")).code != "internal_error", kind
    assert wire_of(QueueFull("full")).status == 429


async def test_the_app_works_under_a_prefix(serve: Any) -> None:
    inner = serve(allow_weight_update=False).app
    transport = httpx.ASGITransport(Starlette(routes=[Mount("/models/a", app=inner)]))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        assert (await client.get("/models/a/health")).status_code == 200
        assert (await client.post("/models/a/pause_generation")).status_code == 403
        assert (await client.get("/models/a/nope")).status_code == 404
