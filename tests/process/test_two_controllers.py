"""Two clients that pause and continue at once: each call is answered, and soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hotswap.testing.server import ServerProcess
from tests.process.forked_server import ForkedServer
from tests.process.http_client import Client, Streams, client_of
from tests.process.update_routes import MODES
from tests.tiers import mostly_long

pytestmark = pytest.mark.process

ROUNDS = [50, 200]
LIMIT_S = 2.0
"""What the clients of a trainer wait for a control call before they call it lost."""


@pytest.fixture(scope="module", params=mostly_long(["gr", "sglang"], but=["gr"]))
def server(request: pytest.FixtureRequest, a: Path) -> Iterator[ServerProcess]:
    arguments = ("--dialect", request.param, "--while-paused", "hold")
    with ForkedServer(a, *arguments) as process:
        yield process
        assert process.exit_code is None, process.log


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with client_of(server.base_url) as client:
        await client.resume()
        yield client


async def rounds(client: Client, mode: str, count: int) -> None:
    for _ in range(count):
        for path, body in (
            ("/pause_generation", {"mode": mode}),
            ("/continue_generation", {}),
        ):
            async with asyncio.timeout(LIMIT_S):
                status, reply = await client.post(path, **body)
            # Or the other one came first, and the reply says so (gr: 409, sglang: 400).
            assert status == 200 or "overtaken by" in str(reply), (path, status, reply)


@pytest.mark.parametrize("count", mostly_long(ROUNDS, but=[50]))
@pytest.mark.parametrize("mode", mostly_long(MODES, but=[MODES[0], MODES[-1]]))
async def test_every_call_is_answered(client: Client, mode: str, count: int) -> None:
    async with Streams(client) as streams:
        running = [streams.start([at + 1, 2], 100) for at in range(2)]
        await asyncio.gather(rounds(client, mode, count), rounds(client, MODES[0], count))
        await client.resume()
        ends = [(await stream.finished())["meta_info"]["finish_reason"] for stream in running]
    assert {end["type"] for end in ends} <= {"length", "abort"}
    assert (await client.state())["state"] == "serving"
    assert (await client.generate([1, 2, 3], 4))["meta_info"]["completion_tokens"] == 4
