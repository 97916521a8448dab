"""Trainers that push in programs of their own, under load, against a fresh server (O1)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from hotswap.testing.server import ServerProcess
from tests.process.evidence import NEW_TOKENS, PROMPTS, Evidence, assert_equal
from tests.process.forked_server import ForkedServer
from tests.process.fresh import fresh
from tests.process.http_client import LIMIT_S, Client, Streams, client_of
from tests.process.own_server import own_server, rested
from tests.process.push_trainer import CHUNKS
from tests.process.pushing import environ
from tests.tiers import mostly_long

pytestmark = pytest.mark.process

GARBAGE = ["gAQu"]  # a pickle of nothing


@pytest.fixture(scope="module", params=mostly_long(["gr", "sglang"], but=["gr"]))
def server(request: pytest.FixtureRequest, a: Path) -> Iterator[ServerProcess]:
    with own_server(a, "--dialect", request.param) as process:
        yield process


@pytest.fixture
async def client(server: ServerProcess, a: Path) -> AsyncIterator[Client]:
    async with rested(server, a) as client:
        yield client


@contextmanager
def trainer(order: str, url: str, directory: Path, *rest: str) -> Iterator[subprocess.Popen[str]]:
    """One that is ready, and begins with a line to it; it is ended with the block."""
    arguments = [order, url, str(directory), *rest]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.process.push_trainer", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(),
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == "ready"
            yield process
        finally:
            process.kill()


def begin(process: subprocess.Popen[str], count: int) -> list[Any]:
    """Have it begin; the first ``count`` replies that it had."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def end(process: subprocess.Popen[str]) -> list[Any]:
    """Have it go on, if it stands still, to its end; the replies that it had."""
    out, errors = process.communicate(input="\n", timeout=LIMIT_S)
    assert process.returncode == 0, errors
    return [json.loads(line) for line in out.splitlines()]


def run(order: str, url: str, directory: Path, version: str) -> list[Any]:
    """Run one from its beginning to its end; the replies that it had."""
    with trainer(order, url, directory, version) as process:
        return end(process)


# How requests end that run when it comes.
ENDS = {"slime": {"abort"}, "miles": {"length"}, "native": {"length"}}


@pytest.mark.parametrize("order", mostly_long(ENDS, but=["slime", "miles"]))
async def test_a_trainer_pushes_under_load(
    server: ServerProcess, client: Client, b: Path, order: str
) -> None:
    with trainer(order, server.base_url, b, "7") as process:
        async with Streams(client) as streams:
            begun = [streams.start([at + 1, 2, 3], 1500) for at in range(2)]
            for stream in begun:
                await stream.has_tokens()
            replies = await anyio.to_thread.run_sync(end, process)
            seen = {(await one.finished())["meta_info"]["finish_reason"]["type"] for one in begun}
        assert seen == ENDS[order]
    chunks = replies[:CHUNKS]
    assert {reply["success"] for reply in chunks} == {True}
    assert {reply["staged"] for reply in chunks} == {order != "slime"}
    if order == "slime":
        covered = [reply["coverage"] and reply["coverage"]["covered"] for reply in chunks]
        assert covered[:-1] == sorted(set(covered[:-1]))
        assert covered[-1] is None
        assert (replies[-1]["tensors_loaded"], replies[-1]["coverage"]) == (0, None)
        assert (await client.updates())["push/empty"] >= 1
    status = (await client.get("/status"))[1]
    assert (status["session"], status["weights"]["coverage"]) == (None, None)
    assert status["weights"]["weight_version"] == "7"
    assert_equal(await Evidence.of(client), await fresh(b))


async def test_verl_has_the_memory_and_gives_it_back_under_load(
    server: ServerProcess, client: Client, b: Path
) -> None:
    """What runs when it comes is aborted; what comes while nothing can run is told to retry."""
    with trainer("verl", server.base_url, b, "7", "3") as process:
        async with Streams(client) as streams:
            running = streams.start([1, 2, 3], 1500)
            await running.has_tokens()
            replies = await anyio.to_thread.run_sync(begin, process, 3)
            assert (await running.finished())["meta_info"]["finish_reason"]["type"] == "abort"
            state = await client.state()
            assert (state["state"], state["facts"]["weights"]) == ("sleeping", "never_loaded")
            status, reply = await client.post("/generate", input_ids=PROMPTS[0])
            assert (status, reply["error"]["retryable"]) == (503, True)
            replies += await anyio.to_thread.run_sync(end, process)
    assert [reply["success"] for reply in replies] == [True] * CHUNKS
    assert not any(reply["staged"] for reply in replies)
    weights = (await client.get("/status"))[1]["weights"]
    # It tells no version.
    assert (weights["weight_version"], weights["coverage"]) == ("0", None)
    assert_equal(await Evidence.of(client), await fresh(b))


async def test_a_trainer_is_killed_at_chunk_3_of_10(
    server: ServerProcess, client: Client, b: Path
) -> None:
    """Paused, with the count as it stands; then the next trainer pushes everything."""
    with trainer("slime", server.base_url, b, "7", "3") as process:
        replies = await anyio.to_thread.run_sync(begin, process, 3)
        process.kill()
    status = (await client.get("/status"))[1]
    assert status["state"] == "paused"
    coverage = status["weights"]["coverage"]
    assert coverage == replies[-1]["coverage"]
    assert 0 < coverage["covered"] < coverage["of"]
    assert (coverage["version"], status["weights"]["weight_version"]) == ("7", "7")
    code, ready = await client.get("/ready")
    assert (code, ready["reasons"]) == (503, ["paused"])
    async with Streams(client) as streams:
        held = streams.start(PROMPTS[0], NEW_TOKENS)
        await client.until_status(lambda status: status["http_requests"] == 1)

        # A chunk that is wrong ends such a push: nothing is generated until all is there.
        body = {"serialized_named_tensors": GARBAGE}
        code, reply = await client.post("/update_weights_from_tensor", **body)
        assert (code, reply["success"]) == (400, False)
        state = await client.state()
        assert (state["state"], state["facts"]["weights"]) == ("invalid", "torn")
        code, reply = await client.post("/continue_generation")
        assert (code in (400, 409), "full update" in reply["message"]) == (True, True)
        assert "weights_not_whole" in (await client.get("/ready"))[1]["reasons"]

        await anyio.to_thread.run_sync(run, "slime", server.base_url, b, "8")
        assert (await client.get("/ready"))[0] == 200
        await held.until(lambda stream: stream.ended)
        if held.status == 200:
            assert (await held.finished())["output_ids"] == (await fresh(b)).tokens[0]
    assert_equal(await Evidence.of(client), await fresh(b))


@pytest.mark.long
async def test_a_trainer_is_killed_in_its_session(a: Path, b: Path) -> None:
    """Nothing has changed, and the session is over by itself."""
    arguments = ("--session-timeout-s", "1")
    with ForkedServer(a, *arguments) as server:
        async with client_of(server.base_url) as client:
            before = await client.snapshot()
            with trainer("native", server.base_url, b, "7", "3") as process:
                await anyio.to_thread.run_sync(begin, process, 3)
                process.kill()
            await client.until_status(lambda status: status["session"] is None)
            assert await client.snapshot() == before
            code, reply = await client.post("/hotswap/v1/commit", update_id="update-7")
            assert (code, "timed out" in reply["message"]) == (409, True)
            await client.update(b)
            assert_equal(await Evidence.of(client), await fresh(b))
