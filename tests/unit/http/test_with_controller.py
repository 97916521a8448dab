"""The routes in front of the real controller, on a fake engine and a fake source."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette

from hotswap.controller import Controller
from hotswap.http import create_app
from hotswap.plugins import Plugins
from hotswap.seams import LoadStrategy
from hotswap.settings import Settings
from hotswap.state import State
from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.fakes import FakeEngine, FakeStrategy, Steps
from hotswap.testing.rig import SOURCES, Rig

UPDATE = "/update_weights_from_disk"
TO_B = {"model_path": "B", "weight_version": "b"}


class Server:
    """The app of a rig whose source is called ``disk``."""

    def __init__(self, rig: Rig, app: Starlette, client: httpx.AsyncClient) -> None:
        self.rig = rig
        self.app = app
        self.client = client

    async def get(self, path: str) -> tuple[int, Any]:
        reply = await self.client.get(path)
        return reply.status_code, reply.json()

    async def post(self, path: str, body: object = None) -> tuple[int, Any]:
        reply = await self.client.post(path, json=body)
        return reply.status_code, reply.json()

    async def version(self) -> object:
        return (await self.get("/get_weight_version"))[1]["weight_version"]


def make_disk_rig() -> Rig:
    steps = Steps()
    engine, strategy = FakeEngine(steps=steps), FakeStrategy(sources=SOURCES, steps=steps)
    controller = Controller(engine, strategies={"disk": strategy})
    return Rig(engine=engine, strategy=strategy, controller=controller, steps=steps)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    rig = make_disk_rig()

    def make(_options: object) -> LoadStrategy:
        return rig.strategy

    settings = Settings(allow_weight_update=True, model="A")
    plugins = Plugins(strategies={"disk": make})
    app = create_app(rig.controller, rig.engine, settings, plugins=plugins)
    transport = httpx.ASGITransport(app)
    async with (
        rig.controller,
        httpx.AsyncClient(transport=transport, base_url="http://hotswap.test") as client,
    ):
        yield Server(rig, app, client)


async def test_pause_flush_update_continue(server: Server) -> None:
    server.rig.engine.cached = 4

    assert (await server.post("/pause_generation", {"mode": "retract"}))[0] == 200
    assert await server.get("/ready") == (
        503,
        {"ready": False, "reasons": ["paused"], "state": "paused"},
    )
    assert (await server.post("/flush_cache"))[1]["entries_cleared"] == 4
    status, body = await server.post(UPDATE, TO_B)
    assert (status, body["weight_version"], body["tensors_loaded"]) == (200, "b", 3)
    assert (await server.post("/continue_generation"))[0] == 200

    assert (await server.get("/ready"))[0] == 200
    assert server.rig.engine.values() == {2.0}
    assert (await server.get("/status"))[1]["counters"]["updates"] == {"disk/committed": 1}
    server.rig.assert_rested()


async def test_a_flush_beside_requests_is_refused_and_succeeds_after_them(server: Server) -> None:
    server.rig.run_requests(2)

    status, body = await server.get("/flush_cache")
    assert (status, body["success"]) == (400, False)
    assert "requests that hold KV" in body["message"]

    server.rig.engine.finish_requests()
    assert (await server.get("/flush_cache"))[0] == 200


async def test_an_update_beside_requests_is_refused_with_a_hint(server: Server) -> None:
    server.rig.run_requests(1)

    status, body = await server.post(UPDATE, TO_B)
    assert (status, body["error"]["code"]) == (409, "conflict")
    assert 'pause_generation(mode="abort")' in body["error"]["message"]
    assert "abort_all_requests" in body["error"]["message"]
    assert await server.version() is None

    status, body = await server.post(UPDATE, {**TO_B, "abort_all_requests": True})
    assert (status, body["num_aborted_requests"]) == (200, 1)
    assert await server.version() == "b"
    server.rig.assert_rested()


@pytest.mark.parametrize("step", ["open", "write", "commit"])
async def test_reads_answer_while_an_update_is_under_way(server: Server, step: str) -> None:
    hold = server.rig.steps.hold(step)
    async with AsgiCall(server.app, "POST", UPDATE, TO_B) as call:
        await hold.arrived.wait()
        for path in ("/health", "/status", "/get_weight_version", "/hotswap/v1/state"):
            assert (await server.get(path))[0] == 200
        assert await server.version() is None
        ready, body = await server.get("/ready")
        assert (ready, body["reasons"]) == ((200, []) if step == "open" else (503, ["paused"]))
        hold.release()
        start, _ = await call.finished()

    assert start["status"] == 200
    assert await server.version() == "b"


async def test_a_disconnect_before_the_first_write_undoes_the_update(server: Server) -> None:
    hold = server.rig.steps.hold("open")
    async with AsgiCall(server.app, "POST", UPDATE, TO_B) as call:
        await hold.arrived.wait()
        call.disconnect()
        assert await call.finished() == []

    assert await server.version() is None
    assert server.rig.engine.values() == {0.0}
    assert (await server.get("/ready"))[0] == 200
    server.rig.assert_rested()


async def test_a_disconnect_after_the_first_write_changes_nothing(server: Server) -> None:
    hold = server.rig.steps.hold("write")
    async with AsgiCall(server.app, "POST", UPDATE, TO_B) as call:
        await hold.arrived.wait()
        call.disconnect()
        hold.release()
        await call.finished()
    while server.rig.controller.machine.state is State.UPDATING:
        await server.get("/health")

    assert await server.version() == "b"
    assert server.rig.engine.values() == {2.0}
    server.rig.assert_rested()


async def test_torn_weights_are_said_everywhere_until_a_full_update(server: Server) -> None:
    for at in range(2):
        server.rig.steps.fail("tensor", OSError("no more"), at=at)
    status, body = await server.post(UPDATE, TO_B)
    assert (status, body["error"]["code"], body["success"]) == (500, "update_failed", False)

    assert await server.version() is None
    status, body = await server.get("/ready")
    assert status == 503
    assert {"paused", "weights_not_whole"} <= set(body["reasons"])
    assert (await server.get("/health"))[0] == 200
    assert (await server.post("/continue_generation"))[0] == 409

    assert (await server.post(UPDATE, TO_B))[0] == 200
    await server.post("/continue_generation")
    assert (await server.get("/ready"))[0] == 200
    assert server.rig.engine.values() == {2.0}


async def test_a_wrong_source_changes_nothing(server: Server) -> None:
    for source in ("wrong", "part", "nowhere"):
        status, body = await server.post(UPDATE, {"model_path": source, "weight_version": "x"})
        assert (status, body["error"]["code"], body["success"]) == (400, "validation_error", False)

    assert await server.version() is None
    assert server.rig.engine.values() == {0.0}
    assert (await server.get("/model_info"))[1]["model_path"] == "A"
    server.rig.assert_rested()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a"}),
        ("/get_weights_by_name", {"name": "a"}),
        ("/weights_checker", {}),
    ],
)
async def test_what_the_engine_cannot_do_is_a_404(server: Server, path: str, body: object) -> None:
    """FakeEngine is an Engine only: neither Generator nor Inspector."""
    status, reply = await server.post(path, body)

    assert (status, reply["error"]["code"]) == (404, "not_found")
    assert "engine" in reply["error"]["message"]
