"""What clients of one busy server see: a full queue, long prompts, readers that do not read."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hotswap.testing.server import ServerProcess
from tests.process.forked_server import ForkedServer
from tests.process.http_client import LIMIT_S, Client, Streams, client_of, generate_body, text_of

pytestmark = pytest.mark.process

LONG = 1500


def prompt(number: int, length: int) -> list[int]:
    """A prompt that begins like no other."""
    return [number, *random.Random(number).choices(range(256), k=length - 1)]


@pytest.fixture(scope="module")
def busy(a: Path) -> Iterator[ServerProcess]:
    """A server with small bounds."""
    flags = ["--max-running-requests", "9", "--max-queued-requests", "3"]
    flags += ["--chunked-prefill-size", "64", "--max-total-tokens", "20000"]
    with ForkedServer(a, *flags) as process:
        yield process
        assert "Traceback" not in process.log, process.log


@pytest.fixture
async def client(busy: ServerProcess) -> AsyncIterator[Client]:
    async with client_of(busy.base_url) as client:
        yield client


async def until_in_flight(client: Client, running: int, waiting: int) -> None:
    """Wait until so many run and wait; nobody tells it."""
    wanted = {"running": running, "waiting": waiting}
    await client.until_status(
        lambda status: {name: status["in_flight"][name] for name in wanted} == wanted
    )


async def test_one_more_than_may_wait_is_told_to_come_back(client: Client) -> None:
    async with Streams(client) as streams:
        running = [streams.start(prompt(n, 4), LONG) for n in range(9)]
        for stream in running:
            await stream.has_tokens()
        waiting = [streams.start(prompt(n, 4), 5) for n in range(10, 13)]
        await until_in_flight(client, 9, 3)
        status, reply = await client.post("/generate", **generate_body(prompt(14, 4), 5))
        assert status == 429
        assert reply["error"]["code"] == "overloaded"
        assert "3 requests wait already, wanted fewer than 3" in text_of(reply)
        # Those that run are not touched, and those that wait get their turn.
        for stream in running[:3]:
            stream.scope.cancel()
        for stream in waiting:
            assert len((await stream.finished())["output_ids"]) == 5
    await until_in_flight(client, 0, 0)
    assert len((await client.generate(prompt(14, 4), 5))["output_ids"]) == 5


async def test_a_short_request_beside_eight_long_ones(client: Client) -> None:
    alone = (await client.generate(prompt(99, 20), 10))["output_ids"]
    await client.done("/flush_cache")
    async with Streams(client) as streams:
        # Enough tokens that a client which reads late still finds them open.
        longs = [streams.start(prompt(n, LONG), 400) for n in range(8)]
        await until_in_flight(client, 8, 0)
        short = streams.start(prompt(99, 20), 10)
        await short.has_tokens()
        assert [stream.ended for stream in longs] == [False] * 8
        assert (await short.finished())["output_ids"] == alone
        for stream in longs:
            assert len((await stream.finished())["output_ids"]) == 400


async def test_the_short_one_of_a_batch_begins_before_the_long_ones_end(client: Client) -> None:
    """On one connection, where events come in the order of the passes they are of."""
    bodies = [generate_body(prompt(n, LONG), 2) for n in range(20, 28)]
    bodies.append(generate_body(prompt(98, 20), 10))
    batch = {name: [body[name] for body in bodies] for name in bodies[0]}
    begun, ended = set[int](), list[int]()
    async with client.http.stream("POST", "/generate", json=batch | {"stream": True}) as reply:
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            begun.add(event["index"])
            if event["meta_info"]["finish_reason"] is not None:
                assert 8 in begun, f"{event['index']} ended before the short one began"
                ended.append(event["index"])
    assert sorted(ended) == list(range(9))


async def test_a_client_that_does_not_read_stops_nobody(client: Client) -> None:
    body = generate_body(prompt(60, 4), LONG)
    alone = (await client.done("/generate", **body))["output_ids"]
    async with (
        asyncio.timeout(LIMIT_S),
        client.http.stream("POST", "/generate", json=body | {"stream": True}) as unread,
    ):
        replies = await client.greedy([prompt(n, 30) for n in range(8)], 40)
        assert [len(tokens) for tokens in replies] == [40] * 8
        last = ""
        async for line in unread.aiter_lines():
            if line.startswith("data:") and not line.endswith("[DONE]"):
                last = line
        assert str(alone[-20:]).replace(" ", "")[1:-1] in last.replace(" ", "")


async def test_what_can_never_fit_is_refused(a: Path) -> None:
    flags = ("--max-total-tokens", "256")
    with ForkedServer(a, *flags) as process:
        async with client_of(process.base_url) as client:
            status, reply = await client.post("/generate", **generate_body(prompt(1, 300), 5))
            assert status == 400
            assert "300 tokens, wanted 1 to 255" in text_of(reply)
            # Two that fit one after the other, and not beside each other.
            replies = await client.greedy([prompt(n, 200) for n in range(2)], 30)
            assert [len(tokens) for tokens in replies] == [30, 30]
