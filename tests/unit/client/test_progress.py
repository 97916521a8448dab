"""``update(progress=…)``: told while the update runs, and in nobody's way."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable

import anyio
import httpx
import pytest

from hotswap.client import AsyncClient, Client, UpdateInProgress, UpdateResult
from hotswap.errors import UpdateRejected
from tests.unit.client.fake_sglang import FakeSglang
from tests.unit.client.script import status

UPDATE = "/update_weights_from_disk"
STAGING = {
    "source": "/b",
    "version": "7",
    "phase": "staging",
    "tensors_done": 2,
    "tensors_total": 3,
    "bytes_done": 2_000_000,
    "bytes_total": 3_000_000,
}


class FakeHotswap:
    """Shows the update to whoever looks, and answers it once ``told`` is set."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self.bodies: list[dict[str, object]] = []
        self.answer = httpx.Response(200, json={"success": True, "weight_version": "7"})
        self.running = threading.Event()
        self.looks = 0

    def status(self) -> httpx.Response:
        self.looks += self.running.is_set()
        others = [{**STAGING, "source": "/another"}]
        shown = [*others, STAGING] if self.running.is_set() else others
        return httpx.Response(200, content=status(updates=shown).body)

    def begin(self, request: httpx.Request) -> None:
        self.bodies.append(json.loads(request.content))
        self.running.set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/status":
            return self.status()
        assert request.url.path == UPDATE
        self.begin(request)
        self.told.wait()
        return self.answer

    async def asynchronously(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/status":
            return self.status()
        self.begin(request)
        await asyncio.to_thread(self.told.wait)
        return self.answer


class Listener:
    """Remembers what it is told, and lets the server answer after the first."""

    def __init__(self, server: FakeHotswap, *, error: Exception | None = None) -> None:
        self.seen: list[UpdateInProgress] = []
        self.threads: set[int] = set()
        self._server = server
        self._error = error

    def __call__(self, seen: UpdateInProgress) -> None:
        self.seen.append(seen)
        self.threads.add(threading.get_ident())
        self._server.told.set()
        if self._error is not None:
            raise self._error


def blocking(server: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://server", http=httpx.Client(transport=httpx.MockTransport(server)))


def asynchronous(server: FakeHotswap) -> AsyncClient:
    transport = httpx.MockTransport(server.asynchronously)
    return AsyncClient("http://server", http=httpx.AsyncClient(transport=transport))


def test_a_blocking_client_tells_on_a_thread_that_ends_with_the_update() -> None:
    server = FakeHotswap()
    listener = Listener(server)
    with blocking(server) as client:
        result = client.update("/b", version=7, progress=listener)
    assert result.weight_version == "7"
    first = listener.seen[0]
    assert (first.source, first.phase, first.tensors_done) == ("/b", "staging", 2)
    assert str(first) == "staging 2.0 of 3.0 MB"
    assert threading.get_ident() not in listener.threads
    assert "hotswap-progress" not in [thread.name for thread in threading.enumerate()]


async def test_an_asynchronous_one_tells_on_the_event_loop() -> None:
    server = FakeHotswap()
    listener = Listener(server)
    async with asynchronous(server) as client:
        result = await client.update("/b", version=7, progress=listener)
    assert result.weight_version == "7"
    assert {seen.source for seen in listener.seen} == {"/b"}
    assert listener.threads == {threading.get_ident()}


async def updated(way: str, server: FakeHotswap, listener: Listener) -> UpdateResult:
    if way == "blocking":
        with blocking(server) as client:
            return await asyncio.to_thread(client.update, "/b", progress=listener)
    async with asynchronous(server) as other:
        return await other.update("/b", progress=listener)


@pytest.mark.parametrize("way", ["blocking", "asynchronous"])
async def test_a_callback_that_raises_is_called_once_and_the_update_goes_on(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeHotswap()
    listener = Listener(server, error=LookupError("no bar"))
    with caplog.at_level(logging.ERROR, logger="hotswap.client"):
        result = await updated(way, server, listener)
    assert (result.weight_version, len(listener.seen)) == ("7", 1)
    assert "told no longer: its callback raised" in caplog.text
    assert "no bar" in caplog.text


@pytest.mark.parametrize("way", ["blocking", "asynchronous"])
async def test_what_the_update_raises_arrives_as_itself(way: str) -> None:
    server = FakeHotswap()
    server.answer = httpx.Response(
        400, json={"message": "no"}, headers={"x-hotswap-error": "UpdateRejected"}
    )
    with pytest.raises(UpdateRejected, match="no"):
        await updated(way, server, Listener(server))


async def test_an_update_that_is_cancelled_is_told_of_no_longer() -> None:
    server = FakeHotswap()
    async with asynchronous(server) as client:
        with anyio.CancelScope() as scope:
            await client.update("/b", progress=lambda _: scope.cancel())
        server.told.set()  # lets the thread of the request that was dropped end
        assert scope.cancelled_caught
        looks = server.looks
        await anyio.wait_all_tasks_blocked()
        assert server.looks == looks


def test_looks_that_are_not_answered_are_left_out() -> None:
    server = FakeHotswap()
    refused = threading.Event()

    def meets(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/status" and server.running.is_set() and not refused.is_set():
            refused.set()
            return httpx.Response(500)
        return server(request)

    listener = Listener(server)
    with blocking(meets) as client:
        assert client.update("/b", progress=listener).weight_version == "7"
    assert refused.is_set()
    assert listener.seen


def test_sglang_tells_nothing_and_is_not_asked() -> None:
    server = FakeSglang()
    told: list[UpdateInProgress] = []
    with blocking(server) as client:
        client.update("/b", version=7, progress=told.append)
    assert told == []
    assert server.calls.count("/model_info") == 1


def test_the_strategy_is_asked_for() -> None:
    server = FakeHotswap()
    server.told.set()
    with blocking(server) as client:
        client.update("/b", strategy="npz")
        client.update("/b")
    assert [body.get("strategy") for body in server.bodies] == ["npz", None]


@pytest.mark.parametrize("fenced", [None, False])
def test_sglang_has_no_strategies_and_nothing_is_paused_for_one(fenced: bool | None) -> None:
    server = FakeSglang()
    with (
        blocking(server) as client,
        pytest.raises(UpdateRejected, match="'npz'; leave the strategy out"),
    ):
        client.update("/b", strategy="npz", fenced=fenced)
    assert server.calls == ["/status"]
