"""A body that is still coming for a session, while others abort it, commit it, or leave it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
import torch

from hotswap.controller import Controller
from hotswap.http import create_app
from hotswap.plugins import Plugins
from hotswap.push import SafetensorsBody, SharedTensors
from hotswap.seams import Plan
from hotswap.settings import Settings
from hotswap.testing.fakes import FakeEngine, fake_weights
from hotswap.testing.holdings import resident_bytes
from hotswap.types import Manifest, Scope

PUSH, BYTES = "/hotswap/v1/push", {"content-type": "application/octet-stream"}
BEGIN, COMMIT, ABORT = (f"/hotswap/v1/{word}" for word in ("begin", "commit", "abort"))


class Engine(FakeEngine):
    """``planned`` is set once it has been asked whether something fits."""

    def __init__(self, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        super().__init__(weights)
        self.planned = threading.Event()

    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        self.planned.set()
        return super().plan(manifest, scope)


class Server:
    """The real app and controller on a fake engine, in which nobody waits for a turn."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine()
        self.controller = Controller(self.engine, strategies={}, queue_wait_s=0.0)
        self.app = create_app(
            self.controller,
            self.engine,
            Settings(allow_weight_update=True, model="A"),
            plugins=Plugins(strategies={}),
        )
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://hotswap.test"
        )

    async def ask(self, path: str, **fields: object) -> tuple[int, Any]:
        reply = await self.http.post(path, json=fields)
        return reply.status_code, reply.json()

    async def push(self, content: bytes | AsyncIterator[bytes], **query: str) -> tuple[int, Any]:
        reply = await self.http.post(PUSH, params=query, content=content, headers=BYTES)
        return reply.status_code, reply.json()


class Coming:
    """A body of ``value`` for the session ``u``, half of which has come."""

    def __init__(self, server: Server, value: float) -> None:
        self._whole = b"".join(SafetensorsBody(fake_weights(value).items()))
        self._go_on = asyncio.Event()
        self.reply = asyncio.ensure_future(server.push(self._pieces(), update_id="u"))

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield self._whole[:-20]
        await self._go_on.wait()
        yield self._whole[-20:]

    async def rest(self) -> tuple[int, Any]:
        self._go_on.set()
        return await self.reply

    def leave(self) -> None:
        self.reply.cancel()


@asynccontextmanager
async def half_a_chunk(server: Server) -> AsyncIterator[Coming]:
    """A session with a chunk of it that is being staged."""
    async with server.controller, server.http, asyncio.timeout(30):
        assert (await server.ask(BEGIN, update_id="u"))[0] == 200
        coming = Coming(server, 2.0)
        session = server.controller.sessions.open
        assert session is not None
        await asyncio.to_thread(server.engine.planned.wait)
        assert session.turns.taken
        yield coming
        assert server.controller.sessions.open is None
        assert server.controller.updates == []
        # Whatever became of it, the next push is one.
        body = b"".join(SafetensorsBody(fake_weights(5.0).items()))
        assert (await server.push(body))[0] == 200
        assert server.engine.values() == {5.0}


async def test_a_session_that_is_aborted_meanwhile_takes_nothing_of_it() -> None:
    server = Server()
    async with half_a_chunk(server) as coming:
        status, reply = await server.ask(ABORT, update_id="u")
        assert (status, reply["aborted"]) == (200, True)
        status, reply = await coming.rest()
        assert (status, "was aborted" in reply["message"]) == (409, True)
        assert server.engine.values() == {0.0}


async def test_a_commit_meanwhile_has_to_come_again() -> None:
    server = Server()
    async with half_a_chunk(server) as coming:
        status, reply = await server.ask(COMMIT, update_id="u")
        assert (status, reply["error"]["retryable"]) == (409, True)
        assert server.engine.values() == {0.0}
        assert (await coming.rest())[0] == 200
        assert (await server.ask(COMMIT, update_id="u", weight_version="7"))[0] == 200
        assert (server.engine.values(), server.controller.stamp.version) == ({2.0}, "7")


async def test_another_chunk_and_another_session_meanwhile_are_told_to_retry() -> None:
    server = Server()
    async with half_a_chunk(server) as coming:
        body = b"".join(SafetensorsBody(fake_weights(3.0).items()))
        for status, reply in (
            await server.push(body, update_id="u"),
            await server.ask(BEGIN, update_id="v"),
            await server.push(body),
        ):
            assert (status, reply["error"]["retryable"]) == (409, True)
        assert (await coming.rest())[0] == 200
        # The same names with other bytes: the last that came whole is meant.
        assert (await server.push(body, update_id="u"))[1]["repeated"] == 3
        assert (await server.ask(COMMIT, update_id="u"))[0] == 200
        assert server.engine.values() == {3.0}


async def test_a_sender_that_leaves_meanwhile_leaves_the_session_as_it_was() -> None:
    server = Server()
    async with half_a_chunk(server) as coming:
        coming.leave()
        await asyncio.wait([coming.reply])
        status, reply = await server.ask(COMMIT, update_id="u")
        assert (status, "no tensors" in reply["message"]) == (400, True)
        body = b"".join(SafetensorsBody(fake_weights(4.0).items()))
        assert (await server.push(body, update_id="u"))[0] == 200
        assert (await server.ask(COMMIT, update_id="u"))[0] == 200
        assert server.engine.values() == {4.0}


BIG, CHUNKS = 2**21, 12  # elements of 4 bytes


async def test_a_large_tensor_that_comes_with_each_chunk_takes_its_memory_once() -> None:
    names = [f"x{at}" for at in range(CHUNKS)]
    weights = fake_weights(0.0, names=names)
    engine = Engine({**weights, "big": torch.zeros(BIG)})
    server = Server(engine)
    pushed = {name: torch.full_like(tensor, 3.0) for name, tensor in engine.weights.items()}
    with SharedTensors.of(pushed.items()) as shared:
        described = msgspec.to_builtins(shared.description())
        large = described["tensors"][-1]
        async with server.controller, server.http:
            session = server.controller.sessions.begin(update_id="u")
            before = resident_bytes()
            for small in described["tensors"][:-1]:
                chunk = {**described, "tensors": [small, large], "update_id": "u"}
                assert (await server.ask(PUSH, **chunk))[0] == 200
            assert resident_bytes() - before < 4 * 4 * BIG
            assert session.shown()["bytes"] == 4 * BIG + CHUNKS * 16
            assert (await server.ask(COMMIT, update_id="u"))[0] == 200
            assert all(bool((tensor == 3.0).all()) for tensor in engine.weights.values())


@pytest.mark.parametrize("text", [b"", b"no JSON", b'{"tensors": 5}', b"[" * 10_000])
async def test_a_description_is_read_beside_the_event_loop(text: bytes) -> None:
    server = Server()
    turns = [0]

    async def turn() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def body() -> AsyncIterator[bytes]:
        yield text
        turns[0] = 0

    async with server.controller, server.http:
        turning = asyncio.ensure_future(turn())
        headers = {"content-type": "application/json"}
        reply = await server.http.post(PUSH, content=body(), headers=headers)
        turning.cancel()
    assert reply.status_code == 400
    assert turns[0] > 0
