"""Bodies over every route: what is taken from sloppy clients, and what from nobody."""

import itertools
import json
from typing import Any

import anyio
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from hotswap.http import Kind, KindedRoute
from hotswap.http.app import core_routes
from hotswap.http.body_limit import BodyLimit, limited
from hotswap.http.errors import PayloadTooLarge
from hotswap.http.replies import Json
from hotswap.plugins import Plugins

CALLS = [
    pytest.param(route, method, id=f"{method} {route.path}")
    for route in core_routes()
    for method in sorted(set(route.methods or ()) - {"HEAD"})
    # A stream of events has no end to wait for.
    if route.path != "/hotswap/v1/events"
]
# Fields of many routes, each in a form that a client somewhere sends.
SLOPPY: dict[str, dict[str, object]] = {
    "strings": {
        "timeout": "0.0",
        "truncate_size": "10",
        "token_step": "60000",
        "flush_cache": "true",
        "abort_all_requests": "False",
        "stream": "false",
        "sampling_params": {"max_new_tokens": "2", "temperature": "0.0", "ignore_eos": "True"},
    },
    "nulls": {
        "timeout": None,
        "mode": None,
        "token_step": None,
        "weight_version": None,
        "flush_cache": None,
        "stream": None,
        "rid": None,
        "action": None,
        "sampling_params": {"stop": None, "seed": None, "temperature": None},
    },
    "unknown": {"http_worker_ipc": None, "is_async": True, "made_up": {"a": [1, {"b": None}]}},
    "plain": {},
}
NEEDED: dict[str, dict[str, object]] = {
    "/generate": {"input_ids": [1, 2]},
    "/update_weights_from_disk": {"model_path": "/b"},
    "/get_weights_by_name": {"name": "embed.weight"},
}
TYPES = [None, "application/json", "text/plain", "application/x-www-form-urlencoded", "\u00ff;;="]


@pytest.mark.parametrize("sloppy", SLOPPY)
@pytest.mark.parametrize("path", [*NEEDED, "/pause_generation", "/continue_generation"])
@pytest.mark.parametrize("content_type", TYPES)
async def test_a_sloppy_body_is_taken(
    serving: Any, path: str, sloppy: str, content_type: str | None
) -> None:
    content = json.dumps({**SLOPPY[sloppy], **NEEDED.get(path, {})}).encode()
    headers = {} if content_type is None else {"content-type": content_type.encode("latin-1")}
    reply = await serving.client.post(path, content=content, headers=headers)

    assert reply.status_code == 200, reply.text


NOTHING = [b"", b" \r\n", b"{}", b"null", b'{"a": {"b": [null]}}']


@pytest.mark.parametrize(("route", "method"), CALLS)
async def test_no_route_minds_what_carries_nothing(
    serving: Any, route: KindedRoute, method: str
) -> None:
    path = route.path.replace("{", "").replace("}", "")
    bare = await serving.client.request(method, path)
    assert bare.status_code < 500
    for content, content_type in itertools.product(NOTHING, TYPES):
        headers = {} if content_type is None else {"content-type": content_type.encode("latin-1")}
        # To begin a second session is refused; here each begin is the first.
        await serving.commands.sessions.abort()
        reply = await serving.client.request(method, path, content=content, headers=headers)

        # Whatever the route says to nothing at all, it says to this.
        assert reply.status_code == bare.status_code, (content, content_type)


BAD = [
    b'{"a": 1, "a": 2}',
    b'{"a": 1, "\\u0061": 1}',
    b'{"sampling_params": {"n": 1, "n": 1}}',
    b'{"x": [[{"a": null, "b": 0, "a": null}]]}',
    b'{"a": NaN}',
    b'{"a": [Infinity]}',
    b'{"a": -Infinity}',
    b'{"a": 1e999}',
    b'{"a": "\\ud800"}',
    b'{"a": "\xff"}',
    b"\xef\xbb\xbf{}",
    b"{}{}",
    b"{'a': 1}",
    b'{"a": 1,}',
    b"// c\n{}",
    b'"\\u0000',
    b'{"a": ' + b"9" * 5000 + b"}",
    b'{"a":' * 100_000,
    b"[" * 2000 + b"]" * 2000,
    b'{"a":' + b"[" * 1500 + b"]" * 1500 + b"}",
    json.dumps({"a": 1}).encode("utf-16"),
]

# SGLang's does not look at its body, and its clients send what they like.
UNREAD = {"/flush_cache"}


@pytest.mark.parametrize(("route", "method"), CALLS)
async def test_what_no_route_takes(serving: Any, route: KindedRoute, method: str) -> None:
    path = route.path.replace("{", "").replace("}", "")
    is_unread = path in UNREAD
    for content in BAD:
        reply = await serving.client.request(method, path, content=content)

        assert reply.status_code < 500, content[:24]
        if method in ("POST", "PUT"):
            assert reply.status_code == (200 if is_unread else 400), content[:24]
            assert len(reply.text) < 2000
    if method in ("POST", "PUT"):
        assert len(serving.commands.calls) == (len(BAD) if is_unread else 0)
    # That probe looks at no body, and generates.
    assert path == "/health_generate" or serving.engine.generations == {}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"sampling_params": {"temperature": "nan"}}, "temperature"),
        ({"sampling_params": {"temperature": "Infinity"}}, "temperature"),
        ({"sampling_params": {"top_p": "NaN"}}, "top_p"),
    ],
)
async def test_a_text_that_is_no_number(serving: Any, body: dict[str, Any], named: str) -> None:
    status, reply = await serving.json("POST", "/generate", json={"input_ids": [1], **body})

    assert status == 400
    assert named in reply["error"]["message"]
    assert serving.engine.generations == {}


@pytest.mark.parametrize("timeout", ["nan", "inf", "-inf", "-1", "x"])
async def test_a_query_that_is_no_number(serving: Any, timeout: str) -> None:
    reply = await serving.client.post("/flush_cache", params={"timeout": timeout})

    assert reply.status_code == 400
    assert serving.commands.calls == []


async def test_a_repeated_key_is_named(serving: Any) -> None:
    _, reply = await serving.json("POST", "/pause_generation", content=b'{"mode": 1, "mode": 2}')
    assert "'mode' comes twice" in reply["error"]["message"]

    content = b'{"%s": 1, "%s": 2}' % (b"k" * 5000, b"k" * 5000)
    _, reply = await serving.json("POST", "/pause_generation", content=content)
    assert len(reply["error"]["message"]) < 200


@pytest.mark.parametrize(("route", "method"), CALLS)
async def test_a_parameter_that_comes_twice(serving: Any, route: KindedRoute, method: str) -> None:
    """Readers differ in which of the two they take. Where no query counts, nor does that one."""
    path = route.path.replace("{", "").replace("}", "")
    reply = await serving.client.request(method, f"{path}?mode=abort&mode=retract", content=b"{}")

    assert reply.status_code < 500
    if method in ("POST", "PUT"):
        assert reply.status_code == 400
        assert "'mode' comes twice in the query, wanted once" in reply.text
        assert serving.commands.calls == []


async def counted(request: Request) -> Response:
    return Json({"bytes": len(await request.body())})


@pytest.mark.parametrize(("streams", "status"), [(True, 200), (False, 413)])
async def test_a_plugin_s_route_has_the_limit_unless_it_streams(
    serve: Any, streams: bool, status: int
) -> None:
    route = KindedRoute("/up", counted, kind=Kind.OPEN, methods=["POST"], streams_upload=streams)
    serving = serve(plugins=Plugins(routes=(route,)), max_http_request_bytes=1000)

    assert (await serving.json("POST", "/up", content=b"x" * 1000)) == (200, {"bytes": 1000})
    assert (await serving.client.post("/up", content=b"x" * 1001)).status_code == status


@pytest.mark.parametrize("claimed", [b"0", b"5", b"1001", b"x", b""])
async def test_the_limit_counts_what_comes_and_not_what_was_said(claimed: bytes) -> None:
    chunks: list[Message] = [
        {"type": "http.request", "body": b"x" * 400, "more_body": at < 3} for at in range(4)
    ]

    async def receive() -> Message:
        await anyio.lowlevel.checkpoint()
        return chunks.pop(0)

    reading = limited(receive, 1000)
    await reading()
    await reading()
    with pytest.raises(PayloadTooLarge):
        await reading()
    # Whoever answers swallows what still comes: see test_unread.
    assert len(chunks) == 1


@pytest.mark.parametrize("claimed", [b"1001", b"9" * 20, b"9" * 5000])
async def test_a_body_that_is_promised_too_long_is_refused_before_it_comes(
    claimed: bytes,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("nothing may run")

    scope = {"type": "http", "headers": [(b"Content-Length", claimed)]}
    limit = BodyLimit(app, limit_bytes=1000)
    with pytest.raises(PayloadTooLarge, match="more than 1000 bytes"):
        await limit(scope, _never_read, _never_sent)


async def _never_read() -> Message:
    raise AssertionError("nothing may be read")


async def _never_sent(_message: Message) -> None:
    raise AssertionError("nothing may be sent")
