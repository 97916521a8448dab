"""The request orders of trainers' own code, byte for byte, under load, against a fresh server.

Each driver sends what that trainer's client sends and looks at what it looks at; what
the server holds afterwards is compared with a server that was started on the target.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from hotswap.testing.server import ServerProcess
from tests.process.evidence import Evidence, assert_equal
from tests.process.fresh import fresh
from tests.process.http_client import LIMIT_S, Client, Stream, Streams
from tests.process.own_server import own_server, rested

pytestmark = pytest.mark.process

STREAMS, TOKENS = 4, 200


@pytest.fixture(scope="module", params=["gr", "sglang"])
def server(request: pytest.FixtureRequest, a: Path) -> Iterator[ServerProcess]:
    with own_server(a, "--dialect", request.param) as process:
        yield process


@pytest.fixture
async def client(server: ServerProcess, a: Path) -> AsyncIterator[Client]:
    async with rested(server, a) as client:
        yield client


@pytest.fixture
def published(b: Path, tmp_path: Path) -> Path:
    """A version that its trainer deletes once the update has been answered."""
    return Path(shutil.copytree(b, tmp_path / "weight_v000001"))


@pytest.fixture
async def streams(client: Client) -> AsyncIterator[list[Stream]]:
    async with Streams(client) as running:
        begun = [running.start([at + 1, 2, 3], TOKENS) for at in range(STREAMS)]
        for stream in begun:
            await stream.has_tokens()
        yield begun


async def raised(reply: httpx.Response) -> Any:
    """What ``raise_for_status()`` and ``json()`` leave to a client."""
    assert reply.status_code == 200, (reply.request.url, reply.text)
    return reply.json()


async def flush_until_200(client: Client) -> int:
    """slime and miles: GET, at most 60 times; how many it took."""
    for asked in range(1, 61):
        if (await client.call("GET", "/flush_cache")).status_code == 200:
            return asked
    raise AssertionError("Timeout while flushing cache.")


async def requests_left(client: Client) -> int:
    """slime's look at how many requests an engine still has."""
    loads = (await raised(await client.call("GET", "/v1/loads?include=core")))["loads"]
    return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)


async def ended(streams: list[Stream]) -> list[str]:
    """How each stream ended; every one of them has exactly one end."""
    return [(await stream.finished())["meta_info"]["finish_reason"]["type"] for stream in streams]


async def shows(client: Client, directory: Path) -> None:
    """The live weights and what they generate are those of ``directory``."""
    assert_equal(await Evidence.of(client), await fresh(directory))


async def slime(client: Client, published: Path) -> None:
    """Full disk: bodies of ``{}``, abort, and the directory gone before the continue."""
    await raised(await client.call("POST", "/pause_generation", {}))
    assert await flush_until_200(client) == 1
    body = {"model_path": str(published), "weight_version": "1"}
    await raised(await client.call("POST", "/update_weights_from_disk", body))
    seen = await raised(await client.call("GET", "/get_weight_version"))
    assert seen["weight_version"] == "1"
    shutil.rmtree(published)
    await raised(await client.call("POST", "/continue_generation", {}))


async def slime_rollout_abort(client: Client, published: Path) -> None:
    """slime ends its rollout by itself first, and waits for an engine without requests."""
    reply = await client.call("POST", "/abort_request", {"abort_all": True})
    assert reply.status_code == 200, reply.text
    async with asyncio.timeout(LIMIT_S):
        while await requests_left(client):
            pass
    await slime(client, published)


def miles(mode: str) -> Callable[[Client, Path], Awaitable[None]]:
    """disk-delta: no session; the flush is skipped under ``in_place``, its flag is not."""

    async def order(client: Client, published: Path) -> None:
        await raised(await client.call("POST", "/pause_generation", {"mode": mode}))
        if mode != "in_place":
            assert await flush_until_200(client) == 1
        body = {"model_path": str(published), "weight_version": "1", "flush_cache": True}
        reply = await raised(await client.call("POST", "/update_weights_from_disk", body))
        assert reply.get("success") is not False, reply
        await raised(await client.call("POST", "/continue_generation", {}))
        info = await raised(await client.call("GET", "/model_info"))
        assert info["weight_version"] == "1"

    return order


async def miles_session(client: Client, published: Path) -> None:
    """begin, the update without a label, the label, end: the order of its broadcasts."""
    await raised(await client.call("POST", "/pause_generation", {"mode": "retract"}))
    assert await flush_until_200(client) == 1
    begun = await raised(await client.call("POST", "/begin_weight_update", {"selector": "all"}))
    assert begun["success"] is True
    body = {"model_path": str(published), "flush_cache": False, "selector": "all"}
    await raised(await client.call("POST", "/update_weights_from_disk", body))
    label = {"new_version": "1", "abort_all_requests": False}
    reply = await raised(await client.call("POST", "/update_weight_version", label))
    assert reply["new_version"] == "1"
    done = await raised(await client.call("POST", "/end_weight_update", {}))
    assert done["success"] is True
    await raised(await client.call("POST", "/continue_generation", {}))
    assert (await client.version())["weight_version"] == "1"


async def areal(client: Client, published: Path) -> None:
    """No bodies, and a key that nobody knows; the directory goes after the continue."""
    assert (await client.call("GET", "/health")).status_code == 200
    assert (await client.call("POST", "/pause_generation")).status_code == 200
    body = {"model_path": str(published), "abort_all_request": True}
    await raised(await client.call("POST", "/update_weights_from_disk", body))
    assert (await client.call("POST", "/continue_generation")).status_code == 200
    shutil.rmtree(published)


def port_of(client: Client) -> int:
    port = client.http.base_url.port
    assert port is not None
    return port


def request_bytes(path: str, body: object, headers: dict[str, str]) -> bytes:
    """One POST as it goes over the wire."""
    content = json.dumps(body).encode()
    fields = {"Host": "server", "Content-Length": str(len(content)), **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


def began(status: Any) -> bool:
    """The update to version 1 runs, or has run already."""
    return bool(status["updates"]) or status["weights"]["weight_version"] == "1"


async def verl(client: Client, published: Path) -> None:
    """An update whose client timed out is sent again, beside itself and after itself."""
    headers = {"Authorization": "Bearer None"}
    await raised(
        await client.http.post("/pause_generation", json={"mode": "abort"}, headers=headers)
    )
    body = {"model_path": str(published), "weight_version": "1", "flush_cache": True}
    async with await anyio.connect_tcp(client.http.base_url.host, port_of(client)) as connection:
        await connection.send(request_bytes("/update_weights_from_disk", body, headers))
        await client.until_status(began)
    again = [
        client.http.post("/update_weights_from_disk", json=body, headers=headers) for _ in range(2)
    ]
    for reply in await asyncio.gather(*again):
        assert (await raised(reply))["success"] is True
    assert await flush_until_200(client) == 1
    await raised(await client.call("POST", "/continue_generation", {}))
    assert (await client.version())["weight_version"] == "1"


ORDERS = {
    "slime": (slime, {"abort"}),
    "slime, rollout aborted": (slime_rollout_abort, {"abort"}),
    "miles retract": (miles("retract"), {"length"}),
    "miles in_place": (miles("in_place"), {"length"}),
    "miles session": (miles_session, {"length"}),
    "areal": (areal, {"abort"}),
    "verl": (verl, {"abort"}),
}


@pytest.mark.parametrize("name", ORDERS)
async def test_a_trainer_swaps_under_load(
    client: Client, streams: list[Stream], published: Path, b: Path, name: str
) -> None:
    order, ends = ORDERS[name]
    await order(client, published)
    assert set(await ended(streams)) == ends
    await shows(client, b)


async def test_slime_checks_at_its_start_that_a_sync_reaches_every_weight(
    client: Client, a: Path, b: Path
) -> None:
    """snapshot, reset_tensors, the first sync, compare; and compare sees another sync."""

    async def check(action: str) -> httpx.Response:
        return await client.call("POST", "/weights_checker", {"action": action})

    await raised(await check("snapshot"))
    await raised(await check("reset_tensors"))
    reset = await client.checksums()
    assert reset != (await fresh(a)).checksums
    status, reply = await client.post("/generate", input_ids=[1, 2, 3])
    assert status == 503, reply
    await client.update(a, weight_version="0", pause_mode="abort")
    assert (await raised(await check("compare")))["success"] is True
    await shows(client, a)

    await raised(await check("snapshot"))
    await client.update(b, weight_version="1", pause_mode="abort")
    differs = await check("compare")
    assert differs.status_code == 400, differs.text
    assert "model.layers.0" in differs.text


async def test_an_external_engine_is_recognised(client: Client) -> None:
    """What slime and miles read before they adopt a server that somebody else started."""
    assert (await client.call("GET", "/health_generate")).status_code == 200
    for path in ("/server_info", "/get_server_info"):
        info = await raised(await client.call("GET", path))
        assert (info["tp_size"], info["pp_size"], info["ep_size"]) == (1, 1, 1)
        assert info["enable_memory_saver"] is False
        assert (info["nnodes"], info["node_rank"], info["gpu_id_step"]) == (1, 0, 1)
        assert info["base_gpu_id"] == 0


async def test_a_rollout_reads_its_log_probabilities(client: Client) -> None:
    body = {
        "input_ids": [5, 6, 7],
        "sampling_params": {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True},
        "return_logprob": True,
        "rid": "rollout-1",
    }
    reply = await raised(await client.call("POST", "/generate", body))
    meta = reply["meta_info"]
    assert meta["finish_reason"]["type"] == "length"
    assert meta["weight_version"] == "0"
    pairs = [item[0:2] for item in meta["output_token_logprobs"]]
    assert [token for _, token in pairs] == reply["output_ids"]
    assert all(logprob <= 0.0 for logprob, _ in pairs)
