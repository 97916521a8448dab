"""``/hotswap/v1/push`` in front of the real controller, on a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from starlette.applications import Starlette

from hotswap.attempt import Phase, UpdateNews
from hotswap.controller import Controller
from hotswap.http import create_app
from hotswap.plugins import Plugins
from hotswap.push import SafetensorsBody, SharedTensors
from hotswap.settings import Settings
from hotswap.state import State
from hotswap.testing.fakes import FakeEngine, FakeStrategy, Steps, fake_weights
from hotswap.testing.rig import Rig, settle

PUSH = "/hotswap/v1/push"
BYTES = {"content-type": "application/octet-stream"}


class Server:
    """An app that reads no longer bodies than 64 bytes elsewhere."""

    def __init__(self, **settings: Any) -> None:
        steps = Steps()
        engine, strategy = FakeEngine(steps=steps), FakeStrategy(sources={}, steps=steps)
        controller = Controller(engine, strategies={})
        self.rig = Rig(engine=engine, strategy=strategy, controller=controller, steps=steps)
        values: dict[str, Any] = {"allow_weight_update": True, "model": "A", **settings}
        self.app: Starlette = create_app(
            controller,
            engine,
            Settings(max_http_request_bytes=64, **values),
            plugins=Plugins(strategies={}),
        )
        transport = httpx.ASGITransport(self.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://hotswap.test")

    async def body(self, tensors: Any, **query: Any) -> tuple[int, Any]:
        content = b"".join(SafetensorsBody(tensors.items()))
        reply = await self.http.post(PUSH, params=query, content=content, headers=BYTES)
        return reply.status_code, reply.json()

    async def json(self, body: object) -> httpx.Response:
        return await self.http.post(PUSH, json=body)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    async with server.rig.controller, server.http:
        yield server


async def test_a_body_is_one_update_under_the_labels_of_the_query(server: Server) -> None:
    server.rig.engine.cached = 3
    status, reply = await server.body(fake_weights(2.0), weight_version="7", token_step=3)

    assert status == 200, reply
    assert (reply["success"], reply["tensors_loaded"], reply["bytes"]) == (True, 3, 48)
    assert (reply["weight_version"], reply["token_step"], reply["weight_epoch"]) == ("7", 3, 1)
    assert (reply["load_mode"], reply["entries_cleared"]) == ("staged", 3)
    assert server.rig.engine.values() == {2.0}
    updates = server.rig.controller.counters.as_dict()["updates"]
    assert updates == {"push/committed": 1}
    server.rig.assert_rested()


async def test_a_part_adds_up_and_all_of_it_has_to_be_all(server: Server) -> None:
    part = fake_weights(2.0, names=("a", "b"))
    status, reply = await server.body(part)
    assert (status, reply["success"]) == (400, False)
    assert "missing ['c']" in reply["message"]
    assert server.rig.engine.values() == {0.0}

    status, reply = await server.body(part, scope="partial", flush_cache="false")
    assert (status, reply["coverage"]["covered"], reply["flushed_cache"]) == (200, 2, False)
    status, reply = await server.body(fake_weights(2.0, names=("c",)), scope="partial")
    assert (status, reply["coverage"]) == (200, None)
    assert server.rig.engine.values() == {2.0}


async def test_chunks_of_a_session_are_one_update_with_its_commit(server: Server) -> None:
    begun = (await server.http.post("/hotswap/v1/begin", content=b"")).json()["update_id"]
    with SharedTensors.of(fake_weights(2.0, names=("a",)).items()) as shared:
        described = msgspec.to_builtins(shared.description())
        reply = await server.json({**described, "update_id": begun})
        assert (reply.status_code, reply.json()["staged"]) == (200, True)
    rest = fake_weights(2.0, names=("b", "c"))
    status, reply = await server.body(rest, update_id=begun)
    assert (status, reply["staged"], reply["update_id"]) == (200, True, begun)
    assert server.rig.engine.values() == {0.0}
    status, reply = await server.body(rest)
    assert (status, reply["error"]["code"]) == (409, "busy")

    done = await server.http.post(
        "/hotswap/v1/commit", content=msgspec.json.encode({"update_id": begun})
    )
    assert done.status_code == 200, done.text
    assert server.rig.engine.values() == {2.0}
    status, reply = await server.body(rest, update_id="nobody")
    assert (status, reply["error"]["code"]) == (409, "conflict")


async def test_shared_memory_is_one_update(server: Server) -> None:
    with SharedTensors.of(fake_weights(3.0).items()) as shared:
        described = msgspec.to_builtins(shared.description())
        for version in ("1", "2"):
            reply = await server.json({**described, "weight_version": version})
            assert (reply.status_code, reply.json()["weight_version"]) == (200, version)
        assert server.rig.engine.values() == {3.0}
        reply = await server.json({**described, "nonce": "0" * 64})
        assert (reply.status_code, reply.json()["success"]) == (400, False)
        assert reply.headers["x-hotswap-error"] == "SegmentNotSeen"
    assert server.rig.controller.stamp.update_count == 2


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "segment, size_bytes, nonce"),
        ({"segment": "torch_1_2_3", "size_bytes": 1, "nonce": "00", "tensors": []}, "nonce"),
        ({"tensors": [{"name": "a"}]}, "dtype"),
        ({"scope": "all"}, "scope"),
        ({"size_bytes": -1}, "size_bytes"),
        ([], "object"),
    ],
)
async def test_a_description_that_is_none_names_what_is_wrong(
    server: Server, body: object, named: str
) -> None:
    reply = await server.json(body)
    assert (reply.status_code, reply.json()["success"]) == (400, False)
    assert named in reply.json()["message"]
    assert server.rig.engine.calls == []


async def test_a_body_that_does_not_fit_touches_nothing(server: Server) -> None:
    for tensors, named in (
        (fake_weights(1.0, names=("a", "b", "nobody")), "unknown ['nobody']"),
        ({**fake_weights(1.0), "c": fake_weights(1.0)["c"][:2]}, "wrong"),
    ):
        status, reply = await server.body(tensors)
        assert (status, reply["success"]) == (400, False)
        assert named in reply["message"]
    reply = (await server.http.post(PUSH, content=b"no safetensors", headers=BYTES)).json()
    assert "no safetensors file" in reply["message"]
    assert (await server.body(fake_weights(1.0), pause_mode="never"))[0] == 400
    assert server.rig.engine.calls == []
    assert server.rig.engine.values() == {0.0}


@pytest.mark.parametrize("sent", [4, 60, 0.5, 1.0])
async def test_a_sender_that_leaves_leaves_the_old_weights(server: Server, sent: float) -> None:
    whole = b"".join(SafetensorsBody(fake_weights(2.0).items()))
    part = whole[: sent if isinstance(sent, int) else int(len(whole) * sent)]
    messages = asyncio.Queue[dict[str, Any]]()
    messages.put_nowait({"type": "http.request", "body": part, "more_body": True})
    answered = list[Any]()

    async def answer(message: Any) -> None:
        answered.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": PUSH,
        "query_string": b"",
        "headers": [
            (b"content-length", str(len(whole)).encode()),
            (b"content-type", b"application/octet-stream"),
        ],
    }
    running = asyncio.ensure_future(server.app(scope, messages.get, answer))
    await settle()
    assert not running.done()
    messages.put_nowait({"type": "http.disconnect"})
    async with asyncio.timeout(30):
        await asyncio.wait([running])
    assert running.exception() is None

    # All of it had come, and the commit was not over: then it may be either of both.
    values = server.rig.engine.values()
    assert values == {0.0} or (sent == 1.0 and values == {2.0})
    assert server.rig.controller.machine.state is State.SERVING
    assert server.rig.controller.updates == []
    assert (await server.body(fake_weights(3.0)))[0] == 200
    server.rig.assert_rested()


async def test_it_is_for_those_who_may_update() -> None:
    server = Server(allow_weight_update=False)
    async with server.rig.controller, server.http:
        assert (await server.body(fake_weights(2.0)))[0] == 403


async def test_a_body_that_trickles_in_ends_and_others_are_told_to_retry() -> None:
    """It holds the turn of those that take host memory; a byte now and then does not keep it."""
    server = Server()
    server.rig.controller = Controller(server.rig.engine, strategies={}, queue_wait_s=0.01)
    server.app = create_app(
        server.rig.controller,
        server.rig.engine,
        Settings(allow_weight_update=True, model="A"),
        plugins=Plugins(strategies={}),
    )
    server.app.state.served.stall_s = 0.5
    server.http = httpx.AsyncClient(
        transport=httpx.ASGITransport(server.app), base_url="http://hotswap.test"
    )
    whole = b"".join(SafetensorsBody(fake_weights(2.0).items()))
    staging = asyncio.Event()

    def note(news: UpdateNews) -> None:
        if news.phase is Phase.STAGING:
            staging.set()

    async def trickle() -> AsyncIterator[bytes]:
        yield whole[:-40]
        for byte in whole[-40:]:
            await asyncio.sleep(0.05)
            yield bytes([byte])

    server.rig.controller.observe_updates(note)
    async with server.rig.controller, server.http, asyncio.TaskGroup() as group:
        slow = group.create_task(server.http.post(PUSH, content=trickle(), headers=BYTES))
        await staging.wait()
        status, reply = await server.body(fake_weights(3.0))
        assert (status, reply["error"]["retryable"]) == (409, True)
        assert "another one is still being staged" in reply["message"]
        answered = await slow
        assert answered.status_code == 400
        assert "others wait for their turn" in answered.json()["message"]
        assert server.rig.engine.values() == {0.0}
        assert (await server.body(fake_weights(3.0)))[0] == 200
        assert server.rig.engine.values() == {3.0}
