"""Who may call what: the table of keys, over every route and every way to bend a path."""

import itertools
import random
from collections.abc import Iterable
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import Message
from starlette.websockets import WebSocket

from hotswap.api_keys import ApiKey
from hotswap.http import Kind, KindedRoute
from hotswap.http.app import core_routes
from hotswap.http.errors import Forbidden, Unauthorized
from hotswap.http.keys import Keys, sent_keys
from hotswap.http.routes import PUBLIC_PATHS, Level
from hotswap.plugins import Plugins

API, ADMIN, WRONG = "api-Key-1", "admin-Key-2", "wrong-Key-3"
SERVERS = {
    "none": {},
    "api": {"api_key": ApiKey(API)},
    "admin": {"admin_api_key": ApiKey(ADMIN)},
    "both": {"api_key": ApiKey(API), "admin_api_key": ApiKey(ADMIN)},
}
EVERYBODY = frozenset({"", API, ADMIN, WRONG})
# Of server and level: whose key is let in; None where nobody is, with a 403.
TABLE: dict[tuple[str, Level], frozenset[str] | None] = {
    ("none", Level.NORMAL): EVERYBODY,
    ("none", Level.ADMIN_OPTIONAL): EVERYBODY,
    ("none", Level.ADMIN_FORCE): None,
    ("api", Level.NORMAL): frozenset({API}),
    ("api", Level.ADMIN_OPTIONAL): frozenset({API}),
    ("api", Level.ADMIN_FORCE): None,
    ("admin", Level.NORMAL): EVERYBODY,
    ("admin", Level.ADMIN_OPTIONAL): frozenset({ADMIN}),
    ("admin", Level.ADMIN_FORCE): frozenset({ADMIN}),
    ("both", Level.NORMAL): frozenset({API}),
    ("both", Level.ADMIN_OPTIONAL): frozenset({ADMIN}),
    ("both", Level.ADMIN_FORCE): frozenset({ADMIN}),
}
# A stream that has no end to wait for.
ENDLESS = ("/hotswap/v1/events",)
ADMIN_KINDS = (Kind.UPDATE, Kind.CONTROL, Kind.LOOKUP)


async def ran(_request: Request) -> Response:
    return PlainTextResponse("ran")


BROUGHT = (
    KindedRoute("/forced", ran, kind=Kind.OPEN, methods=["GET"], level=Level.ADMIN_FORCE),
    KindedRoute("/brought/{name}", ran, kind=Kind.OPEN, methods=["GET", "POST"]),
    KindedRoute("/brought/{name}/set", ran, kind=Kind.UPDATE, methods=["POST"]),
)
ROUTES: list[KindedRoute] = [*core_routes(), *BROUGHT]


def expected_level(route: KindedRoute) -> Level:
    """Written out here once more: the gate's own function is what is tested."""
    if route.path == "/forced":
        return Level.ADMIN_FORCE
    if route.kind in ADMIN_KINDS or route.path in ("/flush_cache", "/abort_request"):
        return Level.ADMIN_OPTIONAL
    return Level.NORMAL


def expected_status(server: str, route: KindedRoute | None, key: str) -> int | None:
    """401, 403, or None where the request gets past the keys."""
    if route is not None and route.path in ("/health", "/ready", "/ping", "/health_generate"):
        return None
    level = Level.NORMAL if route is None else expected_level(route)
    allowed = TABLE[server, level]
    if allowed is None:
        return 403
    return None if key in allowed else 401


def keyed(serve: Any, server: str, **more: Any) -> Any:
    return serve(plugins=Plugins(routes=BROUGHT), **SERVERS[server], **more)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@pytest.mark.parametrize("key", sorted(EVERYBODY))
@pytest.mark.parametrize(("server", "level"), TABLE)
def test_the_table(server: str, level: Level, key: str) -> None:
    values = SERVERS[server]
    keys = Keys(api=values.get("api_key"), admin=values.get("admin_api_key"))
    headers = [(b"x-gr-api-key", key.encode())]
    allowed = TABLE[server, level]
    if allowed is None:
        with pytest.raises(Forbidden):
            keys.check(level, headers)
    elif key in allowed:
        keys.check(level, headers)
    else:
        with pytest.raises(Unauthorized):
            keys.check(level, headers)


@pytest.mark.parametrize("server", SERVERS)
async def test_every_route_is_judged_by_the_table(serve: Any, server: str) -> None:
    serving = keyed(serve, server)
    for route, key in itertools.product(ROUTES, sorted(EVERYBODY)):
        path = route.path.replace("{", "").replace("}", "")
        for method in sorted(route.methods or ()):
            wanted = expected_status(server, route, key)
            if wanted is None and path in ENDLESS:
                continue
            reply = await serving.client.request(method, path, headers=bearer(key))
            seen = reply.status_code if reply.status_code in (401, 403) else None
            assert seen == wanted, (server, method, path, key)


def test_the_open_paths_are_those_that_were_meant_to_be() -> None:
    assert {"/health", "/health_generate", "/ready", "/ping"} == PUBLIC_PATHS
    assert {"/health", "/ready"} <= {route.path for route in core_routes()}


@pytest.mark.parametrize("server", ["api", "both"])
async def test_who_has_no_key_cannot_tell_what_there_is(serve: Any, server: str) -> None:
    serving = keyed(serve, server)
    known = [route.path for route in core_routes() if route.path not in PUBLIC_PATHS]
    replies = set()
    for path in [*known, "/nope", "/", "//", "/plugin/x", "/generate/", "/openapi.json"]:
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            reply = await serving.client.request(method, path, headers=bearer(WRONG))
            replies.add((reply.status_code, reply.text, str(sorted(reply.headers.items()))))
    (status, text, headers) = replies.pop()
    assert replies == set()
    assert status == 401
    assert "('www-authenticate', 'Bearer')" in headers
    assert '"code":"unauthorized"' in text


async def test_who_has_the_api_key_is_told_that_the_admin_key_is_needed(serve: Any) -> None:
    serving = keyed(serve, "both")
    reply = await serving.client.post("/pause_generation", headers=bearer(API))
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (401, "unauthorized")
    assert error["message"].startswith("this route asks for the admin key")
    assert serving.commands.calls == []


@pytest.mark.parametrize(
    ("server", "headers"),
    [
        ("both", {}),
        ("both", bearer(WRONG)),
        ("both", {**bearer(API), "x-gr-api-key": WRONG}),
        ("both", {**bearer(API), "x-gr-api-key": ADMIN}),
        ("admin", bearer(API)),
        ("api", bearer(ADMIN)),
    ],
)
async def test_nobody_else_is_told(serve: Any, server: str, headers: dict[str, str]) -> None:
    reply = await keyed(serve, server).client.post("/pause_generation", headers=headers)
    message = reply.json()["error"]["message"]
    assert reply.status_code == 401
    assert message.startswith("this server asks for a key that the request does not bring; send")


@pytest.mark.parametrize(
    ("headers", "let_in"),
    [
        ([("authorization", f"Bearer {API}")], True),
        ([("Authorization", f"bearer {API}")], True),
        ([("AUTHORIZATION", f"BEARER   {API}  ")], True),
        ([("authorization", f"Bearer\t{API}")], True),
        ([("x-gr-api-key", API)], True),
        ([("X-GR-API-Key", f" {API} ")], True),
        ([("authorization", f"Bearer {API}"), ("x-gr-api-key", API)], True),
        ([("authorization", "Bearer None"), ("x-gr-api-key", API)], True),
        ([("authorization", "Basic dXNlcjpwYXNz"), ("x-gr-api-key", API)], True),
        ([("authorization", f"Bearer {WRONG}"), ("x-gr-api-key", API)], False),
        ([("authorization", f"Bearer {API}"), ("x-gr-api-key", WRONG)], False),
        ([("authorization", f"Bearer {API}"), ("authorization", f"Bearer {WRONG}")], False),
        ([("authorization", API)], False),
        ([("authorization", f"Basic {API}")], False),
        ([("authorization", f"Bearer{API}")], False),
        ([("authorization", f"Bearer {API} {API}")], False),
        ([("authorization", f"Bearer {API},")], False),
        ([("authorization", f"Bearer {API.upper()}")], False),
        ([("authorization", "Bearer ")], False),
        ([("authorization", "")], False),
        ([("x-gr-api-key", f"Bearer {API}")], False),
        ([("x-gr-api-key", "")], False),
        ([("x-api-key", API)], False),
        ([("cookie", f"api_key={API}")], False),
    ],
)
async def test_headers(serve: Any, headers: list[tuple[str, str]], let_in: bool) -> None:
    reply = await keyed(serve, "api").client.get("/status", headers=headers)

    assert reply.status_code == (200 if let_in else 401)


async def test_a_key_in_the_query_or_the_body_is_none(serve: Any) -> None:
    serving = keyed(serve, "api")
    for name in ("api_key", "X-GR-API-Key", "Authorization"):
        reply = await serving.client.post("/generate", params={name: API}, json={name: API})
        assert reply.status_code == 401


async def test_bearer_none_is_welcome_where_there_are_no_keys(serving: Any) -> None:
    for value in ("Bearer None", "Bearer", "", "Bearer x y", "Basic None"):
        reply = await serving.client.get("/status", headers={"authorization": value})
        assert reply.status_code == 200


@given(st.lists(st.tuples(st.sampled_from([b"authorization", b"x-gr-api-key"]), st.binary())))
def test_no_bytes_in_a_header_make_it_fail(headers: list[tuple[bytes, bytes]]) -> None:
    prefixed = [*headers, *((name, b"bearer " + value) for name, value in headers)]
    assert all(isinstance(key, bytes) for key in sent_keys(prefixed))
    with pytest.raises(Unauthorized):
        Keys(api=ApiKey(API)).check(Level.NORMAL, prefixed)


def tricks(path: str) -> Iterable[str]:
    """``path`` and what people write to have it mistaken for another."""
    yield path
    yield from (f"{path}/", f"/{path}", f"//{path}//", f"/.{path}", f"{path}/.", f"/x/..{path}")
    yield from (f"/health/..{path}", f"/health{path}", f"/health/../{path[1:]}", f"/ping;{path}")
    yield from (path.upper(), path.title(), f"{path}%2f", f"{path}%00", f"{path};x", f"{path}\n")
    yield from ("/%2e" + path, f"/health%2f..{path}", path.replace("_", "%5f"), f"{path}?x=/health")
    yield from (f"/%{ord(path[1]):02x}{path[2:]}", f"{path}#/health", f"{path}\\", f"{path}..;/")
    yield from (f"http://x{path}", f"/health?{path}", f"{path} ", f"/\u2025{path}")


def served_by(path: str) -> KindedRoute | None:
    """The route whose own text is ``path``, character by character."""
    plain = {route.path: route for route in ROUTES}
    if path in plain:
        return plain[path]
    parts = path.split("/")
    if parts[:2] == ["", "brought"] and len(parts) in (3, 4) and parts[2]:
        name = "/brought/{name}" + "".join(f"/{part}" for part in parts[3:])
        return plain.get(name)
    return None


@pytest.mark.parametrize("prefix", ["", "/models/a"])
async def test_no_trick_gets_past_the_gate(serve: Any, prefix: str) -> None:
    tricky = [trick for route in ROUTES for trick in tricks(route.path)]
    # A path that the outer app does not hand on is its own business.
    paths = [path for path in tricky if path.startswith("/") or not prefix]
    methods = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "TRACE"]
    every = list(itertools.product(SERVERS, sorted(EVERYBODY), methods, paths))
    cases = random.Random(7).sample(every, 3000)
    apps = {server: keyed(serve, server).app for server in SERVERS}
    for server, key, method, path in cases:
        app = apps[server]
        outer = Starlette(routes=[Mount(prefix, app=app)]) if prefix else app
        judged = served_by(path)
        wanted = expected_status(server, judged, key)
        if wanted is None and path in ENDLESS:
            continue
        status = await status_of(outer, method, prefix + path, key)
        if wanted is not None:
            assert status == wanted, (server, key, method, path)
        elif judged is None:
            assert status in (404, 405), (server, key, method, path)
        else:
            assert status not in (401, 403), (server, key, method, path)
            assert status < 500, (server, key, method, path)


async def status_of(app: Any, method: str, path: str, key: str) -> int:
    """The status that ``app`` answers, asked with ``path`` exactly as it stands."""
    sent: list[Message] = []
    incoming: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"authorization", b"Bearer " + key.encode())] if key else [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }

    async def receive() -> Message:
        if incoming:
            return incoming.pop()
        await never.wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    never = anyio.Event()
    await app(scope, receive, send)
    return int(sent[0]["status"])


async def test_a_route_that_was_added_later_is_judged(serve: Any) -> None:
    serving = keyed(serve, "api")
    serving.app.router.routes.append(Route("/late", ran))

    assert (await serving.client.get("/late")).status_code == 401
    reply = await serving.client.get("/late", headers=bearer(API))
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "route_disabled")


async def test_a_route_without_a_kind_asks_for_the_admin_key(serve: Any) -> None:
    routes = (Mount("/sub", routes=[Route("/inner", ran)]),)
    serving = serve(plugins=Plugins(routes=routes), **SERVERS["both"])

    assert (await serving.client.get("/sub/inner", headers=bearer(API))).status_code == 401
    reply = await serving.client.get("/sub/inner", headers=bearer(ADMIN))
    assert reply.json()["error"]["code"] == "route_disabled"


async def test_a_plugin_cannot_call_an_update_a_probe(serve: Any) -> None:
    route = KindedRoute("/ping", ran, kind=Kind.UPDATE, methods=["GET"])
    serving = serve(plugins=Plugins(routes=(route,)), **SERVERS["api"])
    if any(core.path == "/ping" for core in core_routes()):
        assert (await serving.client.get("/ping")).text != "ran"
    else:
        assert (await serving.client.get("/ping")).status_code == 401


async def test_the_key_comes_before_the_kind(serve: Any) -> None:
    serving = keyed(serve, "api", allow_weight_update=False)

    assert (await serving.client.post("/pause_generation")).status_code == 401
    reply = await serving.client.post("/pause_generation", headers=bearer(API))
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "route_disabled")
    assert serving.commands.calls == []


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


@pytest.mark.parametrize(("server", "path"), [("api", "/socket"), ("none", "/socket")])
async def test_a_websocket_that_is_refused_is_closed(serve: Any, server: str, path: str) -> None:
    routes = (WebSocketRoute("/socket", echo),)
    app = serve(plugins=Plugins(routes=routes), **SERVERS[server]).app
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": path, "root_path": "", "headers": [], "state": {}}
    await app(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_no_reply_shows_a_key(serve: Any) -> None:
    serving = keyed(serve, "both")
    for route, key in itertools.product(ROUTES, (API, ADMIN)):
        if route.path in ENDLESS:
            continue
        method = sorted(set(route.methods or ()) - {"HEAD"})[0]
        reply: httpx.Response = await serving.client.request(
            method, route.path, headers=bearer(key), json={}
        )
        shown = reply.text + str(reply.headers)
        assert API not in shown
        assert ADMIN not in shown
