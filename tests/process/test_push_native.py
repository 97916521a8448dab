"""Pushes on hotswap's own wire: other processes, both forms, under load, and cut short."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from hotswap.client import AsyncClient, push, push_async
from hotswap.client import Client as HotswapClient
from hotswap.push import SafetensorsBody, SharedTensors
from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from hotswap.weights.checkpoint import Checkpoint
from tests.process.evidence import Evidence, assert_equal
from tests.process.forked_server import ForkedServer
from tests.process.fresh import fresh
from tests.process.http_client import LIMIT_S, Client, Streams, client_of
from tests.process.process_memory import AnonPeak, anon_bytes, descriptors
from tests.process.pushing import environ

pytestmark = pytest.mark.process

PUSH = "/hotswap/v1/push"
MIB = 2**20


@pytest.fixture(scope="module", params=["gr", "sglang"])
def process(request: pytest.FixtureRequest, a: Path) -> Iterator[ServerProcess]:
    flags = ("--dialect", request.param)
    with ForkedServer(a, *flags) as running:
        yield running
        assert running.exit_code is None, running.log
        assert "Traceback" not in running.log, running.log


@pytest.fixture
async def client(process: ServerProcess, a: Path) -> AsyncIterator[Client]:
    async with client_of(process.base_url) as client:
        await client.resume()
        await client.update(a, weight_version="start", pause_mode="abort")
        yield client


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    with Checkpoint.open(directory) as checkpoint:
        found = {}
        for name, payload in chain.from_iterable(checkpoint.buckets()):
            assert not isinstance(payload, torch.Tensor)
            found[name] = torch.empty(payload.spec.shape, dtype=payload.spec.dtype)
            payload.read_into(found[name])
        return found


@pytest.mark.parametrize("transport", ["body", "shared-memory"])
async def test_another_process_pushes_under_load(
    client: Client, process: ServerProcess, b: Path, transport: str
) -> None:
    async with Streams(client) as streams:
        stream = streams.start([1, 2, 3], 400)
        await stream.has_tokens()
        command = [sys.executable, "-m", "hotswap", "push", str(b), "--url", process.base_url]
        command += ["--transport", transport, "--weight-version", "1", "--json"]
        run = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, env=environ(), timeout=LIMIT_S
        )
        assert run.returncode == 0, run.stderr
        told = json.loads(run.stdout)
        assert (told["weight_version"], told["tensors"]) == ("1", 21)
        meta = (await stream.finished())["meta_info"]
    assert meta["finish_reason"]["type"] == "length"
    assert meta["weight_version_start"] == "start"
    assert_equal(await Evidence.of(client), await fresh(b))


async def test_the_library_pushes_blocking_and_not(
    client: Client, process: ServerProcess, a: Path, b: Path
) -> None:
    of_a, of_b = tensors_of(a), tensors_of(b)
    url = process.base_url
    done = await push_async(of_b, url, version=1, transport="body")
    assert (done.weight_version, done.confirmed_by) == ("1", "reply")
    await asyncio.to_thread(push, of_a, url, version=2)
    with SharedTensors.of(of_b.items()) as shared:
        async with AsyncClient(url) as pusher, pusher.paused("abort"):
            await pusher.push(shared, version=3)
            assert (await client.get("/ready"))[0] == 503
    assert (await client.version())["weight_version"] == "3"
    assert_equal(await Evidence.of(client), await fresh(b))
    with HotswapClient(url) as blocking:
        begun = await client.done("/hotswap/v1/begin")
        names = list(of_a)
        for part in (names[:9], names[9:]):
            chunk = {name: of_a[name] for name in part}
            await asyncio.to_thread(blocking.push, chunk, update_id=begun["update_id"])
        await client.done("/hotswap/v1/commit", update_id=begun["update_id"], weight_version="4")
    assert_equal(await Evidence.of(client), await fresh(a))


async def begun_push(process: ServerProcess, content: bytes, part: int) -> Any:
    """A connection on which ``part`` bytes of a push have been sent."""
    host, port = process.base_url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {PUSH} HTTP/1.1\r\nHost: server\r\nContent-Length: {len(content)}\r\n"
    head += "Content-Type: application/octet-stream\r\n\r\n"
    writer.write(head.encode() + content[:part])
    await writer.drain()
    return writer


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
async def test_a_sender_that_dies_in_the_middle_changes_nothing(
    client: Client, process: ServerProcess, a: Path, b: Path, share: float
) -> None:
    content = b"".join(SafetensorsBody(tensors_of(b).items()))
    before = await client.snapshot()
    open_before = descriptors(process.pid)
    writer = await begun_push(process, content, int(len(content) * share))
    if share > 0.1:
        await client.until_status(lambda status: bool(status["updates"]))
        # Still serving, on the old weights.
        assert (await client.generate([1, 2, 3], 8))["meta_info"]["weight_version"] == "start"
    writer.close()
    await client.until_status(lambda status: not status["updates"] and status["http_requests"] == 0)
    assert await client.snapshot() == before
    async with asyncio.timeout(LIMIT_S):
        while descriptors(process.pid) > open_before:
            await client.get("/status")
    assert_equal(await Evidence.of(client), await fresh(a))


@pytest.mark.long
async def test_a_body_is_in_memory_once(tmp_path: Path) -> None:
    def made(seed: int) -> Path:
        return make_checkpoint(
            tmp_path / f"{seed}",
            seed=seed,
            dtype=torch.float32,
            hidden_size=512,
            intermediate_size=2048,
            num_heads=8,
            num_layers=6,
        )

    first, second = made(1), made(2)
    tensors = tensors_of(second)
    size_bytes = sum(tensor.nbytes for tensor in tensors.values())
    assert size_bytes > 64 * MIB
    with ForkedServer(first) as server:
        async with client_of(server.base_url) as client:
            await client.generate([1, 2, 3], 4)
            for _ in range(2):
                start_bytes = anon_bytes(server.pid)
                with AnonPeak(server.pid) as peak:
                    await push_async(tensors, server.base_url, transport="body")
                assert peak.bytes - start_bytes > size_bytes // 2, "the peak was not seen"
                assert peak.bytes - start_bytes <= size_bytes + 40 * MIB
                assert anon_bytes(server.pid) - start_bytes <= 64 * MIB
