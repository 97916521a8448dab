"""Many requests of every kind at once: each has one final reply, and nothing is left of any."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotswap.testing.server import ServerProcess
from tests.process.evidence import PROMPTS
from tests.process.forked_server import ForkedServer
from tests.process.http_client import LIMIT_S, Client, client_of, generate_body

pytestmark = pytest.mark.process

LONG = 4000
"""Output tokens of a request that ends because somebody ends it."""


@pytest.fixture(scope="module")
def hold(a: Path) -> Iterator[ServerProcess]:
    """Two requests run at a time; those that meet a closed gate wait."""
    flags = ("--while-paused", "hold", "--max-running-requests", "2")
    with ForkedServer(a, *flags) as running:
        yield running
        assert running.exit_code is None, running.log
        assert "Traceback" not in running.log, running.log


@pytest.fixture
async def client(hold: ServerProcess, a: Path) -> AsyncIterator[Client]:
    async with client_of(hold.base_url) as client:
        await client.resume()
        await client.update(a, weight_version="start", pause_mode="abort")
        yield client
        await nothing_is_left(client)


async def nothing_is_left(client: Client) -> None:
    """No request in the engine, at the door or in the books."""
    status = await client.until_status(
        lambda status: not status["http_requests"] and not any(status["in_flight"].values())
    )
    assert status["in_flight"] == {"running": 0, "waiting": 0, "holding_kv": 0}
    rows = (await client.get("/requests"))[1]["requests"]
    assert [row for row in rows if row["state"] in ("running", "waiting")] == []


async def abort(client: Client, **body: object) -> None:
    reply = await client.call("POST", "/abort_request", body)
    assert (reply.status_code, reply.content) == (200, b"")


async def seen(client: Client, *rids: str) -> None:
    """Wait until the server knows of every one of ``rids``."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            rows = (await client.get("/requests"))[1]["requests"]
            if set(rids) <= {row["request_id"] for row in rows}:
                return


@asynccontextmanager
async def begun(work: Awaitable[Any]) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def finish(reply: Any) -> str:
    return str(reply["meta_info"]["finish_reason"]["type"])


async def test_a_batch_is_answered_as_its_prompts_are_one_by_one(client: Client) -> None:
    prompts = [list(prompt) for prompt in PROMPTS[:4]]
    alone = await client.greedy(prompts, 12)
    body = generate_body(prompts[0], 12) | {"input_ids": prompts}
    body["sampling_params"] = body["sampling_params"] | {"n": 2}

    replies = await client.done("/generate", **body, rid="batch")

    assert [reply["output_ids"] for reply in replies] == [ids for ids in alone for _ in range(2)]
    assert [reply["meta_info"]["id"] for reply in replies] == [f"batch_{n}" for n in range(8)]


async def test_a_prompt_that_the_engine_refuses_refuses_the_batch(client: Client) -> None:
    body = generate_body([1], LONG) | {"input_ids": [[1], [2], [10**6]]}
    status, reply = await client.post("/generate", **body)

    assert status == 400
    assert "prompt 2: " in reply["error"]["message"]


async def test_results_survive_a_pause_an_update_and_an_abort(client: Client, b: Path) -> None:
    requests = [generate_body(PROMPTS[at], 8) | {"request_id": f"s{at}"} for at in range(3)]
    await submit_many(client, requests)
    before = [await result(client, f"s{at}") for at in range(3)]
    await client.pause("retract")
    await client.update(b, weight_version="b")
    await client.resume()
    await abort(client, abort_all=True)

    assert [await result(client, f"s{at}") for at in range(3)] == before
    assert {finish(reply) for reply in before} == {"length"}
    for path in ("/submit", "/submit_many"):
        body = requests[0] if path == "/submit" else {"requests": requests}
        status, reply = await client.post(path, **body)
        assert (status, reply["error"]["code"]) == (409, "duplicate_request_id")


async def test_an_abort_finds_requests_wherever_they_are(client: Client) -> None:
    """Running, queued in the engine, held at the door, submitted, and parts of a batch."""
    long = generate_body(PROMPTS[0], LONG)
    batch = long | {"input_ids": [list(prompt) for prompt in PROMPTS[:3]]}
    await submit_many(client, [long | {"request_id": "x-s"}])
    async with (
        begun(client.done("/generate", **batch, rid="x-b")) as parts,
        begun(client.done("/generate", **long, rid="x-q")) as queued,
    ):
        await seen(client, "x-b_0", "x-b_1", "x-b_2", "x-q")
        await client.pause("in_place")
        async with begun(client.done("/generate", **long, rid="x-h")) as held:
            await seen(client, "x-h")
            await abort(client, rid="x-nobody")
            await abort(client, rid="x-h")
            reply = await held
            assert (finish(reply), reply["output_ids"]) == ("abort", [])
            assert reply["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"
        await client.resume()
        assert not parts.done()
        assert not queued.done()
        await abort(client, rid="x-", prefix=True, abort_message="enough")
        replies = [*(await parts), await queued, await result(client, "x-s")]

    assert {finish(reply) for reply in replies} == {"abort"}
    messages = {reply["meta_info"]["finish_reason"]["message"] for reply in replies}
    assert messages == {"enough"}


async def submit_many(client: Client, requests: list[dict[str, Any]]) -> None:
    status, reply = await client.post("/submit_many", requests=requests)
    assert (status, reply) == (202, {"request_ids": [one["request_id"] for one in requests]})


async def result(client: Client, rid: str) -> Any:
    status, reply = await client.get(f"/result/{rid}?timeout=60")
    assert status == 200, reply
    return reply


class Chaos:
    """Clients of every kind, each with one request, and what became of it."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self.prefix = f"chaos-{seed}-"
        self.replies: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self._left: set[str] = set()

    def start(self, number: int) -> asyncio.Task[None]:
        """One client of a random kind; it ends when its request has its final reply."""
        ways: list[Callable[[str, dict[str, Any]], Awaitable[None]]]
        ways = [self._whole, self._batch, self._streamed, self._submitted, self._leaving]
        way = ways[number % len(ways)]
        tokens = self._random.choice([5, 60, LONG])
        body = generate_body(PROMPTS[number % len(PROMPTS)], tokens)
        rid = f"{self.prefix}{number}"
        self._left.add(rid)
        return asyncio.ensure_future(self._run(way(rid, body), rid))

    async def _run(self, work: Awaitable[None], rid: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            await work
        self._left.remove(rid)

    def pick(self) -> str:
        """The id of a request that has no final reply yet."""
        return self._random.choice(sorted(self._left) or ["nobody"])

    def _ended(self, rid: str, reply: Any) -> None:
        assert reply["meta_info"]["id"].startswith(rid)
        self.replies[reply["meta_info"]["id"]] += 1
        self.kinds[finish(reply)] += 1

    async def _whole(self, rid: str, body: dict[str, Any]) -> None:
        self._ended(rid, await self._client.done("/generate", **body, rid=rid))

    async def _batch(self, rid: str, body: dict[str, Any]) -> None:
        body["sampling_params"] = body["sampling_params"] | {"n": 3}
        for reply in await self._client.done("/generate", **body, rid=rid):
            self._ended(rid, reply)

    async def _streamed(self, rid: str, body: dict[str, Any]) -> None:
        events = [event async for event in self._events(rid, body)]
        assert events[-1] == "[DONE]"
        ends = [event for event in events[:-1] if '"finish_reason":null' not in event]
        assert len(ends) == 1
        assert ends[0] == events[-2]
        self.replies[rid] += 1
        self.kinds["streamed"] += 1

    async def _submitted(self, rid: str, body: dict[str, Any]) -> None:
        await submit_many(self._client, [body | {"request_id": rid}])
        first = await result(self._client, rid)
        assert await result(self._client, rid) == first
        self._ended(rid, first)

    async def _leaving(self, rid: str, body: dict[str, Any]) -> None:
        async for _ in self._events(rid, body):
            break
        self.replies[rid] += 1
        self.kinds["left"] += 1

    async def _events(self, rid: str, body: dict[str, Any]) -> AsyncIterator[str]:
        sent = body | {"rid": rid, "stream": True}
        async with self._client.http.stream("POST", "/generate", json=sent) as reply:
            assert reply.status_code == 200
            async for line in reply.aiter_lines():
                if line:
                    yield line.removeprefix("data: ")


@pytest.mark.parametrize("seed", [1, 2])
async def test_each_of_many_requests_has_one_final_reply(
    client: Client, a: Path, b: Path, seed: int
) -> None:
    chaos, order = Chaos(client, seed), random.Random(seed)
    modes = ["abort", "retract", "in_place"]
    clients = [chaos.start(number) for number in range(32)]
    for number in range(12):
        directory = (a, b)[number % 2]
        if order.random() < 0.5:
            await client.update(directory, pause_mode=order.choice(modes))
        else:
            await client.pause(order.choice(modes))
            await abort(client, rid=chaos.pick())
            await client.update(directory)
            await client.resume()
        await abort(client, rid=chaos.pick())
    while not all(task.done() for task in clients):
        # Whoever asked for long replies is told that it is enough, those held included.
        await abort(client, rid=chaos.prefix, prefix=True)
    for task in clients:
        task.result()

    rids = [f"{chaos.prefix}{number}" for number in range(32)]
    batches, others = rids[1::5], set(rids) - set(rids[1::5])
    parts = {f"{rid}_{at}" for rid in batches for at in range(3)}
    assert chaos.replies == Counter(dict.fromkeys(others | parts, 1))
    assert {"abort", "length", "streamed", "left"} >= set(chaos.kinds)
    assert chaos.kinds["abort"] > 0
    await nothing_is_left(client)
    # Ids are free again, but for those whose results are kept.
    await client.generate(PROMPTS[0], 1, rid=rids[0])


@pytest.fixture
async def narrow(a: Path) -> AsyncIterator[Client]:
    """One request runs, two wait; whoever meets a closed gate turns back."""
    flags = ("--max-running-requests", "1", "--max-queued-requests", "2")
    with ForkedServer(a, *flags) as process:
        async with client_of(process.base_url) as client:
            yield client
            await nothing_is_left(client)
        assert "Traceback" not in process.log, process.log


async def test_a_full_queue_and_a_pause_refuse_the_whole_of_a_request(narrow: Client) -> None:
    body = generate_body(PROMPTS[0], LONG)
    batch = body | {"input_ids": [list(PROMPTS[0])] * 8}
    many = {"requests": [body | {"request_id": f"m{at}"} for at in range(8)]}
    for path, sent in (("/generate", batch), ("/submit_many", many)):
        status, reply = await narrow.post(path, **sent)
        assert (status, reply["error"]["code"]) == (429, "overloaded"), path
        assert reply["error"]["retryable"]
        await nothing_is_left(narrow)

    await narrow.pause("abort")
    one = body | {"request_id": "m0"}
    for path, sent in (("/submit", one), ("/submit_many", {"requests": [one]})):
        status, reply = await narrow.post(path, **sent)
        assert (status, reply["error"]["code"]) == (503, "paused"), path
    assert (await narrow.get("/requests"))[1]["count"] == 0
    await narrow.resume()

    status, reply = await narrow.post("/submit", **one)
    assert (status, reply) == (202, {"request_id": "m0"})
    assert (await narrow.post("/cancel", request_id="m0"))[1]["cancelled"]
    assert (await result(narrow, "m0"))["state"] == "aborted"
