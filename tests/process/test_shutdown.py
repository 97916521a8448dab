"""SIGTERM and SIGINT in the middle of anything: one end for everybody, and exit code 0."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.forked_server import ForkedServer
from tests.process.http_client import LIMIT_S, Client, Streams, client_of
from tests.tiers import mostly_long

pytestmark = pytest.mark.process

UPDATE = "/update_weights_from_disk"
SIGNALS = [signal.SIGTERM, signal.SIGINT]
GATED = "tests.process.gated_server"


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with room for a request that does not end by itself."""
    return make_checkpoint(tmp_path_factory.mktemp("long") / "m", max_position_embeddings=65_536)


@dataclass(slots=True)
class Watched:
    """The events of a server, read by a task until they end."""

    events: list[tuple[str, Any]] = field(default_factory=list)
    ended: bool = False
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def read(self, http: httpx.AsyncClient) -> None:
        async with http.stream("GET", "/hotswap/v1/events") as reply:
            name = ""
            async for line in reply.aiter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    async with self.news:
                        self.events.append((name, json.loads(line.removeprefix("data: "))))
                        self.news.notify_all()
        async with self.news:
            self.ended = True
            self.news.notify_all()

    async def until(self, holds: Callable[["Watched"], bool]) -> None:
        async with asyncio.timeout(LIMIT_S), self.news:
            await self.news.wait_for(lambda: holds(self))

    @property
    def phases(self) -> list[str]:
        """Those of updates, in order."""
        return [data["phase"] for name, data in self.events if name == "update"]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[tuple[Client, Watched]]:
    """A client, and the events, which the block has to read to their end."""
    watched = Watched()
    async with client_of(url) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(watched.read, client.http)
        await watched.until(lambda seen: "hello" in seen.names)
        yield client, watched
        await watched.until(lambda seen: seen.ended)


async def until(holds: Callable[[], bool]) -> None:
    """Ask about another process until it is so: there is no event of ours to wait for."""

    def poll() -> None:
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    await anyio.to_thread.run_sync(poll)


async def reached(gate: Path) -> None:
    """Wait until the server stands at its gate."""
    await until((gate / "reached").exists)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    (tmp_path / "gate").mkdir()
    return tmp_path / "gate"


@pytest.fixture
def gated(a: Path, gate: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Servers whose source stands still at ``gate``."""

    def make(*arguments: str, traced: bool = False) -> ServerProcess:
        environ = {"OMP_NUM_THREADS": "1", "GATE": str(gate), "PYTHONPATH": os.getcwd()}
        start = ServerProcess if traced else ForkedServer
        return start(a, *arguments, program=GATED, environ=environ)

    yield make
    (gate / "open").touch()


async def ended(server: ServerProcess) -> int:
    return await anyio.to_thread.run_sync(server.wait)


@pytest.mark.parametrize("number", mostly_long(SIGNALS, but=[signal.SIGINT]))
async def test_an_update_that_is_being_staged_is_dropped(
    gated: Callable[..., ServerProcess], gate: Path, b: Path, number: signal.Signals
) -> None:
    with gated("--graceful-s", "20", traced=True) as server:
        async with watching(server.base_url) as (client, watched):
            update = asyncio.create_task(client.post(UPDATE, model_path=str(b)))
            await reached(gate)
            os.kill(server.pid, number)
            await watched.until(lambda seen: "shutting_down" in seen.names)
            # The thread at the gate cannot be cancelled, and goes on now.
            (gate / "open").touch()
            status, body = await update

        assert (status, body["error"]["code"]) == (503, "shutting_down")
        assert "dropped before its first write" in body["message"]
        assert body["success"] is False
        assert watched.phases == ["received", "staging", "dropped"]
        assert watched.names[-1] == "shutdown"
        assert await ended(server) == 0
    assert "Traceback" not in server.log


async def test_a_source_that_never_answers_does_not_keep_the_process(
    gated: Callable[..., ServerProcess], gate: Path, b: Path
) -> None:
    with gated("--graceful-s", "0.5") as server:
        async with watching(server.base_url) as (client, watched):
            update = asyncio.create_task(client.call("POST", UPDATE, {"model_path": str(b)}))
            await reached(gate)
            began = time.monotonic()
            os.kill(server.pid, signal.SIGTERM)
            with pytest.raises(httpx.TransportError):
                await update
        assert watched.names[-1] == "shutdown"
        assert await ended(server) == 0
        assert time.monotonic() - began < 10
    assert "a thread has not ended" in server.log
    assert "Traceback" not in server.log


async def test_a_commit_that_has_begun_finishes(
    gated: Callable[..., ServerProcess], gate: Path, b: Path
) -> None:
    with gated("--graceful-s", "20", "--load-mode", "direct", traced=True) as server:
        async with watching(server.base_url) as (client, watched):
            update = asyncio.create_task(
                client.post(UPDATE, model_path=str(b), weight_version="new")
            )
            await reached(gate)
            await watched.until(lambda seen: "committing" in seen.phases)
            os.kill(server.pid, signal.SIGTERM)
            await watched.until(lambda seen: "shutting_down" in seen.names)
            assert not update.done()
            (gate / "open").touch()
            status, body = await update

        assert (status, body["weight_version"], body["weight_epoch"]) == (200, "new", 1)
        assert watched.phases[-1] == "committed"
        assert watched.names[-1] == "shutdown"
        assert await ended(server) == 0
    assert "Traceback" not in server.log


async def test_commands_behind_a_commit_get_503(
    gated: Callable[..., ServerProcess], gate: Path, b: Path
) -> None:
    with gated("--graceful-s", "20", "--load-mode", "direct") as server:
        async with watching(server.base_url) as (client, watched):
            update = asyncio.create_task(client.post(UPDATE, model_path=str(b)))
            await reached(gate)
            resume = asyncio.create_task(client.post("/continue_generation"))
            pause = asyncio.create_task(client.post("/pause_generation", mode="abort"))
            os.kill(server.pid, signal.SIGTERM)
            await watched.until(lambda seen: "shutting_down" in seen.names)
            answers = await asyncio.gather(resume, pause)
            (gate / "open").touch()
            status, _ = await update

        assert [(code, body["error"]["code"]) for code, body in answers] == [
            (503, "shutting_down")
        ] * 2
        assert status == 200
        assert await ended(server) == 0


async def test_a_second_signal_ends_at_once(
    gated: Callable[..., ServerProcess], gate: Path, b: Path
) -> None:
    with gated("--graceful-s", "600", "--load-mode", "direct") as server:
        async with client_of(server.base_url) as client:
            update = asyncio.create_task(client.call("POST", UPDATE, {"model_path": str(b)}))
            await reached(gate)
            os.kill(server.pid, signal.SIGTERM)
            await until(lambda: "a second one ends at once" in server.log)
            os.kill(server.pid, signal.SIGINT)
            assert await ended(server) == -signal.SIGINT
            with pytest.raises(httpx.TransportError):
                await update


@pytest.mark.parametrize("number", mostly_long(SIGNALS, but=[signal.SIGTERM]))
async def test_held_requests_get_503(long: Path, number: signal.Signals) -> None:
    with ServerProcess(long, "--while-paused", "hold", environ={"OMP_NUM_THREADS": "1"}) as server:
        async with watching(server.base_url) as (client, watched):
            await client.pause("abort")
            held = [
                asyncio.create_task(client.post("/generate", input_ids=[1, 2])) for _ in range(3)
            ]
            await client.until_status(lambda status: status["http_requests"] == 3)
            os.kill(server.pid, number)
            answers = await asyncio.gather(*held)

        assert [(code, body["error"]["code"]) for code, body in answers] == [
            (503, "shutting_down")
        ] * 3
        assert watched.names[1:] == ["state", "pause", "shutting_down", "shutdown"]
        assert await ended(server) == 0
    assert "Traceback" not in server.log


@pytest.mark.parametrize("paused", mostly_long([None, "in_place", "retract"], but=[None]))
async def test_streams_end_with_a_reason(long: Path, paused: str | None) -> None:
    with ForkedServer(long) as server:
        async with watching(server.base_url) as (client, watched), Streams(client) as streams:
            running = [streams.start([1, 2, number], 60_000) for number in range(4)]
            for stream in running:
                await stream.has_tokens(2)
            if paused is not None:
                await client.pause(paused)
            os.kill(server.pid, signal.SIGTERM)
            events = [await stream.finished() for stream in running]

        for event in events:
            reason = event["meta_info"]["finish_reason"]
            assert reason["type"] == "abort"
            assert reason["message"] == "the server is shutting down"
            assert event["meta_info"]["completion_tokens"] == len(event["output_ids"]) >= 2
        assert watched.names[-2:] == ["shutting_down", "shutdown"]
        assert await ended(server) == 0
    assert "Traceback" not in server.log


async def test_an_openai_stream_ends_with_a_reason_too(long: Path) -> None:
    with ForkedServer(long) as server:
        body = {"model": "m", "prompt": "hello", "stream": True, "max_tokens": 60_000}
        async with (
            client_of(server.base_url) as client,
            client.http.stream(
                "POST", "/v1/completions", json=body | {"ignore_eos": True}
            ) as reply,
        ):
            lines = []
            async for line in reply.aiter_lines():
                if line:
                    lines.append(line)
                if len(lines) == 2:
                    os.kill(server.pid, signal.SIGTERM)
                    lines.append("")

        assert lines[-1] == "data: [DONE]"
        last = json.loads(lines[-2].removeprefix("data: "))
        assert last["choices"][0]["finish_reason"] == "abort"
        assert await ended(server) == 0
    assert "Traceback" not in server.log


async def test_a_pause_that_drains_gets_503_and_its_streams_end(long: Path) -> None:
    with ForkedServer(long) as server:
        async with watching(server.base_url) as (client, watched), Streams(client) as streams:
            stream = streams.start([1, 2], 60_000)
            await stream.has_tokens(2)
            draining = asyncio.create_task(client.post("/pause_generation", mode="wait"))
            # The door closes before the drain begins: 503 tells that it has begun.
            async with asyncio.timeout(LIMIT_S):
                while (await client.get("/ready"))[0] == 200:
                    pass
            os.kill(server.pid, signal.SIGTERM)
            status, body = await draining
            event = await stream.finished()

        assert (status, body["error"]["code"]) == (503, "shutting_down")
        assert event["meta_info"]["finish_reason"]["type"] == "abort"
        assert watched.names[-1] == "shutdown"
        assert await ended(server) == 0
    assert "Traceback" not in server.log


async def submitted(client: Client, rid: str, tokens: int) -> None:
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": [1, 2], "request_id": rid, "sampling_params": sampling}
    status, _ = await client.post("/submit", **body)
    assert status == 202


async def test_results_can_be_fetched_while_the_server_goes_down(long: Path) -> None:
    # Longer than the test waits for the end of the process: it ends once all are read.
    with ServerProcess(
        long, "--graceful-s", "600", environ={"OMP_NUM_THREADS": "1"}, stop_s=LIMIT_S
    ) as server:
        async with client_of(server.base_url) as client:
            await submitted(client, "done", 3)
            await submitted(client, "polled", 3)
            await submitted(client, "running", 60_000)
            for rid in ("done", "polled"):
                async with asyncio.timeout(LIMIT_S):
                    while (await client.get(f"/requests/{rid}"))[1]["state"] != "finished":
                        pass
            os.kill(server.pid, signal.SIGTERM)
            await until(lambda: "shutting down" in server.log)
            status, refused = await client.post("/generate", input_ids=[1])
            assert (status, refused["error"]["code"]) == (503, "shutting_down")

        # Another client, whose connection is new.
        async with client_of(server.base_url) as client:
            status, reply = await client.get("/result/done")
            assert (status, reply["state"], len(reply["output_ids"])) == (200, "finished", 3)
            status, reply = await client.get("/poll/polled")
            assert (status, reply["state"]) == (200, "finished")
            status, reply = await client.get("/result/running?timeout=60")
            assert (status, reply["state"]) == (200, "aborted")
            assert reply["meta_info"]["finish_reason"]["message"] == "the server is shutting down"
        assert await ended(server) == 0
    assert "Traceback" not in server.log


async def test_results_that_nobody_reads_do_not_keep_the_process(a: Path) -> None:
    with ForkedServer(a, "--graceful-s", "0.2") as server:
        async with client_of(server.base_url) as client:
            await submitted(client, "r", 3)
        os.kill(server.pid, signal.SIGTERM)
        assert await ended(server) == 0
    assert "Traceback" not in server.log


async def test_metrics_json_logs_and_a_list_of_events_of_a_real_server(a: Path, b: Path) -> None:
    environ = {"OMP_NUM_THREADS": "1", "HOTSWAP_LOG_FORMAT": "json"}
    with ServerProcess(a, environ=environ) as server:
        async with client_of(server.base_url) as client:
            await client.generate([1, 2, 3], 4)
            await client.update(b, weight_version="7", pause_mode="retract")
            scrape = (await client.call("GET", "/metrics")).text
            listed = (await client.get("/hotswap/v1/events?stream=false"))[1]
        assert server.stop() == 0

    assert 'hotswap_updates_total{outcome="committed",strategy="disk"} 1.0' in scrape
    assert 'hotswap_weights_info{epoch="1",version="7"} 1.0' in scrape
    assert "hotswap_output_tokens_total 4.0" in scrape
    assert [event["phase"] for event in listed["events"] if event["event"] == "update"] == [
        "received",
        "staging",
        "queued",
        "committing",
        "committed",
    ]
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, lines))
    (update,) = [line for line in lines if line["logger"] == "hotswap.update"]
    assert (update["outcome"], update["weight_epoch"], update["strategy"]) == (
        "committed",
        1,
        "disk",
    )
    assert lines[-1]["state"] == "serving"
