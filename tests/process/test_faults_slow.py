"""A30: probes are answered at once while an update reads or writes; clients may leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotswap.testing.asgi_call import AsgiCall
from tests.process.evidence import NEW_TOKENS, PROMPTS, Evidence, assert_equal
from tests.process.failing import Gate, watched
from tests.process.fresh import fresh
from tests.process.http_client import Client, Streams, generate_body
from tests.process.in_process import InProcess, load, serving
from tests.process.served import Flavour, of_every_flavour
from tests.process.slow_source import SlowStrategy
from tests.process.told import flush_refused, refusal
from tests.process.update_routes import EACH_ROUTE, MODES, Delivery, deliver

pytestmark = pytest.mark.process

PROBES = ("/health", "/get_weight_version", "/status", "/ready", "/hotswap/v1/state")
PINGS = 20
PATH = "/update_weights_from_disk"


@asynccontextmanager
async def updating(
    client: Client, route: str, directory: Path
) -> AsyncIterator[asyncio.Task[tuple[int, Any]]]:
    """An update on its way; it has ended when the block has."""
    task = asyncio.ensure_future(deliver(client, route, Delivery(directory=directory)))
    try:
        yield task
    finally:
        await asyncio.wait([task])


async def ping_everything(client: Client, state: str, *, dialect: str) -> None:
    """Every probe, many times: 99 of 100 within half a second, and true."""
    took: list[float] = []
    for _ in range(PINGS):
        for path in PROBES:
            began = time.perf_counter()
            reply = await client.call("GET", path)
            status = reply.status_code
            body = {} if (path, dialect) == ("/health", "sglang") else reply.json()
            took.append(time.perf_counter() - began)
            assert status == (503 if path == "/ready" and state != "serving" else 200)
            if "state" in body:
                assert body["state"] == state
            if "weight_update_count" in body:
                assert body["weight_update_count"] == 0
    assert sorted(took)[int(0.99 * len(took)) - 1] < 0.5


async def asked_while_paused(client: Client, flavour: Flavour) -> asyncio.Task[tuple[int, Any]]:
    """A request that meets the closed gate: turned back at once, or on its way still."""
    body = generate_body(PROMPTS[0], NEW_TOKENS)
    asked = asyncio.ensure_future(client.post("/generate", **body))
    if flavour.while_paused == "hold":
        await client.until_status(lambda status: status["http_requests"] == 1)
    else:
        refusal(flavour.dialect, "paused", await asked, reports_success=False)
    return asked


@of_every_flavour(
    "where, mode", [(where, mode) for mode in (None, *MODES) for where in ("reading", "opening")]
)
async def test_a30_staging_serves_on(
    a: Path, b: Path, flavour: Flavour, where: str, mode: str | None
) -> None:
    """As long as nobody has paused; and a pause is seen as one.

    What is loaded directly is read while it is written.
    """
    gate, dialect = Gate(), flavour.dialect
    writes = (flavour.load_mode, where) == ("direct", "reading")
    state = "updating" if writes else "paused" if mode else "serving"
    slow = SlowStrategy(**{where: gate})
    tokens = [(await fresh(directory)).tokens[0] for directory in (a, b)]
    async with serving(load(a), strategies={"disk": slow}, **flavour.settings) as server:
        client = server.client
        if mode is not None:
            await client.pause(mode)
        async with updating(client, PATH, b) as update:
            try:
                await gate.reached()
                await ping_everything(client, state, dialect=dialect)
                if state == "serving":
                    seen = await client.generate(PROMPTS[0], NEW_TOKENS)
                    assert seen["output_ids"] == tokens[0]
                if mode is not None:
                    asked = await asked_while_paused(client, flavour)
                assert not update.done()
            finally:
                gate.open()
            assert (await update)[0] == 200
        await client.resume()
        if mode is not None and flavour.while_paused == "hold":
            assert (await asked)[1]["output_ids"] == tokens[1]
        assert_equal(await Evidence.of(client), await fresh(b))


@of_every_flavour("mode", [(mode,) for mode in (None, *MODES)])
@pytest.mark.parametrize("route", EACH_ROUTE)
async def test_a30_writing_is_seen_as_updating(
    a: Path, b: Path, route: str, flavour: Flavour, mode: str | None
) -> None:
    """The engine's thread stands still in the middle of the weights."""
    gate, dialect = Gate(), flavour.dialect
    loaded = watched(load(a), before_write=lambda at: gate.wait() if at == 5 else None)
    async with (
        serving(loaded, **flavour.settings) as server,
        Streams(server.client) as streams,
    ):
        client = server.client
        if mode is not None:
            await client.pause(mode)
        async with updating(client, route, b) as update:
            try:
                await gate.reached()
                await ping_everything(client, "updating", dialect=dialect)
                ready = (await client.get("/ready"))[1]
                assert ready["reasons"] == ["paused"]
                asked = streams.start(PROMPTS[0], NEW_TOKENS)
                # Commands queue up and are answered once they can be.
                late = asyncio.create_task(client.post("/pause_generation", mode="retract"))
                await flush_refused(client, dialect, code="busy")
                assert not update.done()
                assert asked.tokens == []
            finally:
                gate.open()
            assert (await update)[0] == 200
        assert (await late)[0] == 200
        await client.resume()
        await asked.until(lambda stream: stream.ended)
        wanted = (await fresh(b)).tokens[0]
        if asked.status == 200:
            assert (await asked.finished())["output_ids"] == wanted
        else:
            assert (asked.status, flavour.while_paused) == (503, "reject")
        assert_equal(await Evidence.of(client), await fresh(b))


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_a30_a_dead_engine_is_not_healthy(a: Path, b: Path, dialect: str) -> None:
    """Everything is answered all the same (O4)."""

    def die(*_: object) -> None:
        raise SystemExit("injected: the engine's thread ends")

    loaded = load(a)
    loaded.model.register_forward_pre_hook(die)
    async with serving(loaded, dialect=dialect) as server:
        ended = await server.client.call("POST", "/generate", {"input_ids": [1]})
        assert ended.status_code >= 400, ended.text

        health = await server.client.call("GET", "/health")
        assert health.status_code == 503
        if dialect == "gr":
            assert health.json()["engine_alive"] is False
        else:
            assert health.content == b""
        status, ready = await server.client.get("/ready")
        assert (status, "engine_not_running" in ready["reasons"]) == (503, True)
        assert (await server.client.version())["weight_update_count"] == 0
        for path, body in (
            ("/generate", {"input_ids": [1]}),
            (PATH, {"model_path": str(b)}),
            ("/flush_cache", {}),
            ("/continue_generation", {}),
            ("/pause_generation", {"mode": "abort"}),
        ):
            refused = await server.client.call("POST", path, body)
            assert refused.status_code >= 400, (path, refused.text)


async def turns_to_others(client: Client) -> None:
    """A server that has answered these has seen before them who left."""
    for _ in range(3):
        await client.get("/health")


async def leave_while(gate: Gate, server: InProcess, b: Path, **body: object) -> None:
    """A client that goes away while the server stands at ``gate``."""
    call = AsgiCall(server.app, "POST", PATH, {"model_path": str(b), **body})
    async with call:
        await gate.reached()
        call.disconnect()
        await turns_to_others(server.client)
        gate.open()
        messages = await call.finished()
        assert messages == [] or messages[0]["type"] == "http.response.start"


@pytest.mark.parametrize("pause", [None, "retract", "in_place"])
@pytest.mark.parametrize("where", ["opening", "reading"])
async def test_a_client_that_leaves_while_staging_has_changed_nothing(
    a: Path, b: Path, where: str, pause: str | None
) -> None:
    gate = Gate()
    slow = SlowStrategy(**{where: gate})
    async with serving(load(a), strategies={"disk": slow}) as server:
        client = server.client
        if pause is not None:
            await client.pause(pause)
        before = await client.snapshot()
        await leave_while(gate, server, b, weight_version="never")

        assert await client.snapshot() == before
        assert slow.held == 0
        assert await client.updates() == {"disk/cancelled": 1}
        await client.resume()
        assert_equal(await Evidence.of(client), await fresh(a))
        await client.update(b)
        assert_equal(await Evidence.of(client), await fresh(b))


@pytest.mark.parametrize("mode", ["staged", "direct"])
@pytest.mark.parametrize("at", [0, 5, 20])
async def test_a_client_that_leaves_after_the_first_write_changes_nothing_about_it(
    a: Path, b: Path, mode: str, at: int
) -> None:
    gate = Gate()
    loaded = watched(load(a), before_write=lambda now: gate.wait() if now == at else None)
    async with serving(loaded, load_mode=mode) as server:
        await leave_while(gate, server, b, weight_version="new")

        assert await server.client.updates() == {"disk/committed": 1}
        assert (await server.client.version())["weight_version"] == "new"
        assert (await server.client.state())["state"] == "serving"
        assert_equal(await Evidence.of(server.client), await fresh(b))


async def test_a_connection_that_breaks_while_staging(a: Path, b: Path) -> None:
    """As above, over a socket."""
    gate = Gate()
    slow = SlowStrategy(reading=gate)
    async with serving(load(a), strategies={"disk": slow}) as server:
        before = await server.client.snapshot()
        call = asyncio.create_task(server.client.post(PATH, model_path=str(b)))
        await gate.reached()
        call.cancel()
        await asyncio.wait([call])
        await turns_to_others(server.client)
        gate.open()
        await server.client.until_status(
            lambda status: status["counters"]["updates"] == {"disk/cancelled": 1}
        )

        assert await server.client.snapshot() == before
        assert slow.held == 0
