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
from tests.process.http_client import Client, Streams
from tests.process.in_process import InProcess, load, serving
from tests.process.slow_source import SlowStrategy
from tests.process.told import flush_refused, refusal

pytestmark = pytest.mark.process

PROBES = ("/health", "/get_weight_version", "/status", "/ready", "/hotswap/v1/state")
PINGS = 40
PATH = "/update_weights_from_disk"


@asynccontextmanager
async def updating(client: Client, **body: object) -> AsyncIterator[asyncio.Task[tuple[int, Any]]]:
    """An update on its way; it has ended when the block has."""
    task = asyncio.create_task(client.post(PATH, **body))
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
            assert status == (503 if path == "/ready" and state == "updating" else 200)
            if "state" in body:
                assert body["state"] == state
            if "weight_update_count" in body:
                assert body["weight_update_count"] == 0
    assert sorted(took)[int(0.99 * len(took))] < 0.5


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
@pytest.mark.parametrize("where", ["opening", "reading"])
async def test_a30_staging_serves_on(a: Path, b: Path, where: str, dialect: str) -> None:
    gate = Gate()
    slow = SlowStrategy(**{where: gate})
    async with (
        serving(load(a), strategies={"disk": slow}, dialect=dialect) as server,
        updating(server.client, model_path=str(b)) as update,
    ):
        try:
            await gate.reached()
            await ping_everything(server.client, "serving", dialect=dialect)
            tokens = (await fresh(a)).tokens
            assert (await server.client.generate(PROMPTS[0], NEW_TOKENS))["output_ids"] == tokens[0]
            assert not update.done()
        finally:
            gate.open()
        assert (await update)[0] == 200
        assert_equal(await Evidence.of(server.client), await fresh(b))


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
@pytest.mark.parametrize("mode", ["staged", "direct"])
async def test_a30_writing_is_seen_as_updating(a: Path, b: Path, mode: str, dialect: str) -> None:
    """The engine's thread stands still in the middle of the weights."""
    gate = Gate()
    loaded = watched(load(a), before_write=lambda at: gate.wait() if at == 5 else None)
    async with (
        serving(loaded, load_mode=mode, dialect=dialect) as server,
        updating(server.client, model_path=str(b)) as update,
        Streams(server.client) as streams,
    ):
        try:
            await gate.reached()
            await ping_everything(server.client, "updating", dialect=dialect)
            ready = (await server.client.get("/ready"))[1]
            assert ready["reasons"] == ["paused"]
            asked = streams.start(PROMPTS[0], NEW_TOKENS)
            # Commands queue up and are answered once they can be.
            late = asyncio.create_task(server.client.post("/pause_generation", mode="retract"))
            await flush_refused(server.client, dialect, code="busy")
            assert not update.done()
            assert asked.tokens == []
        finally:
            gate.open()
        assert (await update)[0] == 200
        assert (await late)[0] == 200
        await server.client.resume()
        wanted = (await fresh(b)).tokens[0]
        if asked.status is None or asked.status == 200:
            assert (await asked.finished())["output_ids"] == wanted
        assert_equal(await Evidence.of(server.client), await fresh(b))


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_a30_a_dead_engine_is_not_healthy(a: Path, b: Path, dialect: str) -> None:
    """Everything is answered all the same (O4)."""

    def die(at: int) -> None:
        if at == 3:
            raise SystemExit("injected: the engine's thread ends")

    async with serving(watched(load(a), before_write=die), dialect=dialect) as server:
        answer = await server.client.post(PATH, model_path=str(b))
        refusal(dialect, "update failed", answer)

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
