"""Events and metrics of a real server, over sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.process.forked_server import ForkedServer
from tests.process.http_client import LIMIT_S, Client, Streams, client_of
from tests.process.in_process import load, serving

pytestmark = pytest.mark.process

PATH = "/hotswap/v1/events"


@asynccontextmanager
async def events(
    client: Client, after: str | None = None
) -> AsyncIterator[AsyncIterator[tuple[str, str, Any]]]:
    """Id, name and data of each event; the connection is closed at the end."""
    headers = {} if after is None else {"Last-Event-ID": after}
    async with client.http.stream("GET", PATH, headers=headers) as reply:
        assert reply.status_code == 200
        yield frames(reply)


async def frames(reply: httpx.Response) -> AsyncIterator[tuple[str, str, Any]]:
    found: dict[str, str] = {}
    async for line in reply.aiter_lines():
        if line:
            key, _, value = line.partition(": ")
            found[key] = value
        elif "event" in found:
            yield found.get("id", ""), found["event"], json.loads(found["data"])
            found = {}


async def gauge(client: Client, name: str) -> float:
    """The value of a metric without labels."""
    text = (await client.call("GET", "/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


async def until_gauge(client: Client, name: str, wanted: float) -> None:
    """Ask until a metric is as wanted: the server tells nobody when a client has left."""
    async with asyncio.timeout(LIMIT_S):
        while await gauge(client, name) != wanted:
            pass


async def test_a_swap_under_load_as_its_watchers_see_it(a: Path, b: Path) -> None:
    async with serving(load(a)) as server, Streams(server.client) as streams:
        stream = streams.start([1, 2, 3], 40)
        await stream.has_tokens(2)
        async with events(server.client) as seen:
            _, name, hello = await anext(seen)
            assert (name, hello["state"]) == ("hello", "serving")
            report = await server.client.update(b, weight_version="7", pause_mode="retract")
            story: list[str] = []
            while True:
                _, name, data = await anext(seen)
                story.append(
                    f"{data['old']}>{data['new']}" if name == "state" else f"{data['phase']}"
                )
                if story[-1] == "committed":
                    break
        assert story == [
            "received",
            "staging",
            "queued",
            "committing",
            "serving>updating",
            "updating>serving",
            "committed",
        ]
        for cost in ("staged_ms", "paused_ms", "elapsed_ms", "bytes", "weight_epoch"):
            assert data[cost] == report[cost]
        await stream.finished()
        assert await gauge(server.client, "hotswap_update_paused_seconds_count") == 1
        assert await gauge(server.client, "hotswap_update_bytes_total") == report["bytes"]
        assert await gauge(server.client, "hotswap_weight_epoch") == 1


async def test_a_watcher_that_leaves_is_forgotten(a: Path) -> None:
    async with serving(load(a)) as server:
        before = (await server.client.state())["tasks"]
        async with events(server.client) as first, events(server.client) as second:
            await anext(first)
            await anext(second)
            assert await gauge(server.client, "hotswap_event_readers") == 2
        await until_gauge(server.client, "hotswap_event_readers", 0)
        async with asyncio.timeout(LIMIT_S):
            while (await server.client.state())["tasks"] > before:
                pass


async def test_resuming_on_the_same_server_and_on_one_that_was_started_again(a: Path) -> None:
    with ForkedServer(a) as server:
        async with client_of(server.base_url) as client:
            async with events(client) as seen:
                await anext(seen)
                await client.pause("abort")
                last, name, _ = await anext(seen)
                assert name == "state"
            await client.resume()
            async with events(client, last) as seen:
                assert [(await anext(seen))[1] for _ in range(4)] == [
                    "hello",
                    "pause",
                    "state",
                    "resume",
                ]
    with ForkedServer(a) as server:
        async with client_of(server.base_url) as client, events(client, last) as seen:
            await anext(seen)
            _, name, data = await anext(seen)
            assert (name, data) == ("gap", {"asked": last, "reason": "other_run"})
