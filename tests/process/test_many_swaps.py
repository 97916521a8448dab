"""32 requests at once, 20 swaps, every pause mode: one end each, and the right tokens.

In float32, where greedy tokens do not depend on what else is in the batch.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotswap.testing.server import ServerProcess
from tests.process.http_client import LIMIT_S, Client, generate_body
from tests.process.own_server import own_server, rested
from tests.process.reference import Reference
from tests.process.update_routes import MODES
from tests.tiers import mostly_long

# The server is another process: there is little to trace in this one.
pytestmark = [pytest.mark.process, pytest.mark.no_cover]

CLIENTS, SWAPS = 32, 20
ENDS = {"length", "abort", "503"}


@pytest.fixture(scope="module")
def server(a: Path) -> Iterator[ServerProcess]:
    with own_server(a, "--dtype", "float32", "--max-running-requests", "16") as process:
        yield process


@pytest.fixture
async def client(server: ServerProcess, a: Path) -> AsyncIterator[Client]:
    async with rested(server, a) as client:
        yield client


class Rollout:
    """Clients that ask again and again, and every reply that they got."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stopping = False
        self.asked = 0
        self.replies: list[tuple[list[int], int, Any]] = []
        self._news = asyncio.Condition()
        self._clients = [asyncio.ensure_future(self._run(at)) for at in range(CLIENTS)]

    async def _run(self, at: int) -> None:
        draw = random.Random(at)
        while not self._stopping:
            prompt = [draw.randrange(256) for _ in range(draw.randrange(2, 40))]
            self.asked += 1
            body = generate_body(prompt, draw.randrange(8, 48))
            status, reply = await self._client.post("/generate", **body)
            async with self._news:
                self.replies.append((prompt, status, reply))
                self._news.notify_all()

    async def more_replies(self, count: int) -> None:
        """Wait until ``count`` more have come: the load is there between two swaps."""
        wanted = len(self.replies) + count
        async with asyncio.timeout(LIMIT_S), self._news:
            await self._news.wait_for(lambda: len(self.replies) >= wanted)

    async def end(self) -> None:
        """Let every client have its last reply."""
        self._stopping = True
        await asyncio.gather(*self._clients)


def ending(status: int, reply: Any) -> str:
    if status == 503:
        return "503"
    assert status == 200, reply
    return str(reply["meta_info"]["finish_reason"]["type"])


def whole_spans(reply: Any, *, mode: str) -> list[tuple[str, int, int]]:
    """Version, start, end of what one set of weights made alone.

    After ``retract`` the context was computed anew. A request that was frozen
    ``in_place`` goes on from older KV: only its first span is of one version.
    """
    spans = reply["meta_info"]["weight_versions"]
    kept = spans[:1] if mode == "in_place" else spans
    return [(span["version"], span["start"], span["end"]) for span in kept]


@pytest.mark.parametrize("mode", mostly_long(MODES, but=["retract"]))
async def test_requests_live_through_swaps(client: Client, a: Path, b: Path, mode: str) -> None:
    references = [Reference(a), Reference(b)]
    rollout = Rollout(client)
    for number in range(1, SWAPS + 1):
        directory = (a, b)[number % 2]
        if number % 2:
            await client.update(directory, weight_version=str(number), pause_mode=mode)
        else:
            await client.pause(mode)
            await client.update(directory, weight_version=str(number))
            await client.resume()
        await rollout.more_replies(2)
    await rollout.end()

    assert len(rollout.replies) == rollout.asked, "a request without exactly one reply"
    ends = Counter(ending(status, reply) for _, status, reply in rollout.replies)
    assert set(ends) <= ENDS
    assert ends["length"] > CLIENTS
    assert mode == "abort" or set(ends) == {"length"}, ends
    versions = set()
    judged_by_the_other = 0
    for prompt, status, reply in rollout.replies:
        if status != 200:
            continue
        tokens = prompt + reply["output_ids"]
        for version, start, end in whole_spans(reply, mode=mode):
            versions.add(version)
            here, other = references[int(version) % 2], references[1 - int(version) % 2]
            at, past = len(prompt) + start, len(prompt) + end
            assert not here.misses(tokens, at, past)
            if past - at > 20 and judged_by_the_other < 10:
                assert len(other.misses(tokens, at, past)) > 10, "the judge sees no difference"
                judged_by_the_other += 1
    assert judged_by_the_other == 10
    assert len(versions) > SWAPS // 2
    status = (await client.get("/status"))[1]
    assert status["in_flight"] == {"running": 0, "waiting": 0, "holding_kv": 0}
