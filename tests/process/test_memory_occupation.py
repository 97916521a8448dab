"""Memory that goes to the trainer and comes back: the orders of verl and slime, on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.evidence import Evidence, assert_equal
from tests.process.forked_server import ForkedServer
from tests.process.fresh import fresh
from tests.process.http_client import LIMIT_S, Client, Streams, client_of
from tests.process.process_memory import anon_bytes

pytestmark = pytest.mark.process

RELEASE, RESUME = "/release_memory_occupation", "/resume_memory_occupation"
MIB = 2**20


@pytest.fixture(scope="module", params=["gr", "sglang"])
def process(request: pytest.FixtureRequest, a: Path) -> Iterator[tuple[str, ServerProcess]]:
    arguments = ("--dialect", request.param)
    with ForkedServer(a, *arguments) as running:
        yield request.param, running
        assert running.exit_code is None, running.log
        assert "Traceback" not in running.log, running.log


@pytest.fixture
def dialect(process: tuple[str, ServerProcess]) -> str:
    return process[0]


@pytest.fixture
async def client(process: tuple[str, ServerProcess], a: Path) -> AsyncIterator[Client]:
    """The server rests on ``a``, under version 0."""
    async with client_of(process[1].base_url) as client:
        await client.done(RESUME)
        await client.update(a, weight_version="0", pause_mode="abort")
        await client.resume()
        yield client


async def raised(client: Client, method: str, path: str, body: object = None) -> Any:
    """What ``raise_for_status()`` and ``json()`` leave to a client."""
    reply = await client.call(method, path, body)
    assert reply.status_code == 200, (path, reply.text)
    return reply.json()


async def twice(client: Client, path: str, body: object) -> None:
    """verl sends what was not answered in time again."""
    for _ in range(2):
        await raised(client, "POST", path, body)


async def flush_until_200(client: Client) -> None:
    for _ in range(60):
        if (await client.call("GET", "/flush_cache")).status_code == 200:
            return
    raise AssertionError("Timeout while flushing cache.")


async def refused(client: Client, path: str, body: object) -> str:
    reply = await client.call("POST", path, body)
    assert reply.status_code in (400, 409), (path, reply.status_code, reply.text)
    return reply.text


async def facts_of(client: Client) -> tuple[str, str, str]:
    state = await client.state()
    return state["state"], state["facts"]["weights"], state["facts"]["kv"]


async def test_verl_s_order_and_what_everybody_hears_meanwhile(
    client: Client, dialect: str, a: Path, b: Path
) -> None:
    for path in ("/health_generate", "/flush_cache"):
        assert (await client.call("GET", path)).status_code == 200
    await client.done("/weights_checker", action="snapshot")
    await twice(client, RELEASE, {"tags": ["kv_cache", "weights"]})

    assert await facts_of(client) == ("sleeping", "released", "released")
    assert (await client.get("/ready")) == (
        503,
        {
            "ready": False,
            "reasons": ["paused", "sleeping", "weights_not_whole"],
            "state": "sleeping",
        },
    )
    metrics = (await client.call("GET", "/metrics")).text
    assert 'hotswap_state{state="sleeping"} 1.0' in metrics
    assert (await client.call("GET", "/health_generate")).status_code == 200
    assert (await client.post("/generate", input_ids=[1, 2]))[0] == 503
    for path, body in (
        ("/get_weights_by_name", {"name": "model.norm.weight"}),
        ("/weights_checker", {"action": "checksum"}),
        ("/weights_checker", {"action": "compare"}),
        ("/weights_checker", {"action": "reset_tensors"}),
        ("/update_weights_from_disk", {"model_path": str(b)}),
    ):
        assert "released" in await refused(client, path, body), (path, body)
    assert "sleeping" in await refused(client, "/update_weight_version", {"new_version": "9"})

    await twice(client, RESUME, {"tags": ["weights"]})
    assert await facts_of(client) == ("sleeping", "never_loaded", "released")
    assert (await client.post("/generate", input_ids=[1, 2]))[0] == 503
    for _ in range(2):
        await client.update(b, weight_version="1", flush_cache=False)
    assert await facts_of(client) == ("sleeping", "whole", "released")
    await flush_until_200(client)
    await twice(client, RESUME, {"tags": ["kv_cache"]})

    assert await facts_of(client) == ("serving", "whole", "resident")
    assert (await client.version())["weight_version"] == "1"
    assert_equal(await Evidence.of(client), await fresh(b))
    await client.update(a)
    await client.done("/weights_checker", action="compare")
    counts = (await client.get("/status"))[1]["counters"]["commands"]
    assert counts["sleep/done"] >= 2
    assert counts["wake/done"] >= 4


async def test_slime_s_order_around_a_colocated_training_step(
    client: Client, dialect: str, b: Path
) -> None:
    await flush_until_200(client)
    reply = await raised(client, "POST", RELEASE, {})
    assert (reply is None) is (dialect == "sglang")
    await raised(client, "POST", RESUME, {"tags": ["weights"]})
    await raised(client, "POST", "/pause_generation", {})
    await flush_until_200(client)
    await raised(client, "POST", "/post_process_weights", {"restore_weights_before_load": True})
    body = {"model_path": str(b), "weight_version": "1"}
    await raised(client, "POST", "/update_weights_from_disk", body)
    await raised(client, "POST", "/post_process_weights", {"post_process_quantization": True})
    assert (await client.version())["weight_version"] == "1"
    await raised(client, "POST", "/continue_generation", {})
    assert (await client.state())["state"] == "sleeping"
    await raised(client, "POST", RESUME, {"tags": ["kv_cache", "cuda_graph"]})

    assert (await client.get("/ready"))[0] == 200
    assert_equal(await Evidence.of(client), await fresh(b))


async def test_weights_that_come_back_without_a_push_generate_nothing(
    client: Client, a: Path
) -> None:
    await client.done(RELEASE)
    await client.done(RESUME)
    assert await facts_of(client) == ("invalid", "never_loaded", "resident")
    assert (await client.post("/generate", input_ids=[1, 2]))[0] == 503
    assert "full update" in await refused(client, "/continue_generation", {})
    checked = await client.done("/weights_checker", action="checksum")
    assert "not whole: never_loaded" in checked["message"]
    await client.update(a)
    assert_equal(await Evidence.of(client), await fresh(a))


async def test_running_requests_are_refused_parked_or_ended(client: Client, b: Path) -> None:
    async with Streams(client) as streams:
        parked = streams.start([1, 2, 3], 600)
        await parked.has_tokens()
        assert "in flight" in await refused(client, RELEASE, {})
        await client.pause("in_place")
        assert "abort" in await refused(client, RELEASE, {"tags": ["kv_cache"]})
        await client.done(RELEASE, pause_mode="retract")
        await client.done(RESUME)
        await client.update(b, weight_version="1")
        await client.resume()
        meta = (await parked.finished())["meta_info"]
        assert (meta["finish_reason"]["type"], meta["completion_tokens"]) == ("length", 600)
        assert (meta["weight_version_start"], meta["weight_version_end"]) == ("0", "1")

        ended = streams.start([4, 5, 6], 1800)
        await ended.has_tokens()
        await client.done(RELEASE, tags=["kv_cache"], abort_all_requests=True)
        assert (await ended.finished())["meta_info"]["finish_reason"]["type"] == "abort"
        await client.done(RESUME)
    assert_equal(await Evidence.of(client), await fresh(b))


async def test_the_system_gets_the_memory(tmp_path: Path) -> None:
    directory = make_checkpoint(
        tmp_path / "big",
        seed=1,
        dtype=torch.float32,
        hidden_size=512,
        intermediate_size=2048,
        num_heads=8,
        num_layers=6,
    )
    weights_bytes = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    assert weights_bytes > 64 * MIB
    with ForkedServer(directory) as server:
        async with client_of(server.base_url) as client:
            first = await client.greedy([[1, 2, 3]], 8)
            for _ in range(2):
                full_bytes = anon_bytes(server.pid)
                await client.done(RELEASE)
                async with asyncio.timeout(LIMIT_S):
                    while full_bytes - anon_bytes(server.pid) < 0.95 * weights_bytes:
                        await client.state()
                await client.done(RESUME)
                await client.update(directory)
                assert abs(anon_bytes(server.pid) - full_bytes) < 32 * MIB
                assert await client.greedy([[1, 2, 3]], 8) == first
