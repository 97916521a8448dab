"""slime's delta sync, in its order: the trainer publishes, the server pulls, and then loads.

What the server shows after each step is what a server shows that was started on the whole
checkpoint of that version; until the step's update it shows the version before.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hotswap.testing.server import ServerProcess
from tests.process.evidence import PROMPTS
from tests.process.forked_server import ForkedServer
from tests.process.http_client import Client, Stream, Streams, client_of
from tests.process.in_process import load, serving
from tests.process.stream_publisher import publisher
from tests.untraced import UNTRACED

# The server is another process: there is little to trace in this one.
pytestmark = [pytest.mark.process, pytest.mark.no_cover]

VERSIONS, TOKENS = 10, 8
LOAD, LOAD_TOKENS = 2, 60
# slime publishes in one of the two; a stream in which they alternate gives the same bytes.
ENCODINGS = ("xor", "overwrite", "xor", "xor", "overwrite")

Seen = tuple[dict[str, str], list[list[int]]]


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pulls may write."""
    return tmp_path_factory.mktemp("copies")


@pytest.fixture(scope="module")
def server(a: Path, copies: Path) -> Iterator[ServerProcess]:
    """As slime finds it, with one thread for pulls and a place for copies."""
    arguments = ("--dialect", "sglang", "--pull-threads", "1", "--local-root", str(copies))
    with ForkedServer(a, *arguments) as process:
        yield process
        assert process.exit_code is None, process.log
        assert "Traceback" not in process.log, process.log


@dataclass(slots=True)
class Trainer:
    """What slime sends, byte for byte, and what it looks at: the status and ``json()``."""

    client: Client
    source: Path
    local: Path
    replies: list[Any] = field(default_factory=list)
    updates: list[Any] = field(default_factory=list)

    async def post(self, path: str, body: dict[str, object]) -> Any:
        reply = await self.client.call("POST", path, body)
        assert reply.status_code == 200, (path, body, reply.text)
        return reply.json()

    async def pull(self, version: int) -> Any:
        body: dict[str, object] = {
            "local_checkpoint_dir": str(self.local),
            "source_dir": str(self.source),
            "target_version": version,
        }
        self.replies.append(await self.post("/pull_weights", body))
        return self.replies[-1]

    async def first_sync(self) -> None:
        """A source that is empty; the server seeds its copy from what it was started with."""
        shutil.rmtree(self.source, ignore_errors=True)
        self.source.mkdir()
        await self.pull(0)

    async def load(self, version: int) -> None:
        """Pause, flush until 200, update, compare the version, continue."""
        await self.post("/pause_generation", {})
        for _ in range(60):
            if (await self.client.call("GET", "/flush_cache")).status_code == 200:
                break
        else:
            raise AssertionError("Timeout while flushing cache.")
        reply = await self.post(
            "/update_weights_from_disk",
            {"model_path": str(self.local), "weight_version": str(version)},
        )
        self.updates.append(reply)
        told = (await self.client.call("GET", "/get_weight_version")).json()
        assert str(told["weight_version"]) == str(version)
        await self.post("/continue_generation", {})


@asynccontextmanager
async def under_load(client: Client) -> AsyncIterator[list[Stream]]:
    """Requests that never stop coming; all of them, once they have ended."""
    ended, over = list[Stream](), asyncio.Event()

    async def keep(number: int, streams: Streams) -> None:
        while not over.is_set():
            stream = streams.start([number, 2, 3], LOAD_TOKENS)
            await stream.finished()
            ended.append(stream)

    async with Streams(client) as streams, asyncio.TaskGroup() as tasks:
        for number in range(LOAD):
            tasks.create_task(keep(number + 1, streams))
        try:
            yield ended
        finally:
            over.set()


async def seen(client: Client) -> Seen:
    return await client.checksums(), await client.greedy(PROMPTS[:2], TOKENS)


async def fresh(directory: Path) -> Seen:
    """What a server shows that was started on ``directory``."""
    async with serving(load(directory)) as started:
        return await seen(started.client)


async def test_ten_versions_of_a_trainer_s_loop(
    server: ServerProcess, a: Path, tmp_path: Path, copies: Path
) -> None:
    source, local = tmp_path / "source", copies / "local"
    async with (
        client_of(server.base_url) as client,
        publisher(a, source, tmp_path / "expected") as trains,
    ):
        trainer = Trainer(client, source, local)
        async with under_load(client) as ended:
            await trainer.first_sync()
            live = await fresh(a)
            wholes = [live[0]]
            for version in range(1, VERSIONS + 1):
                expected = await trains.publish(version, ENCODINGS[version % len(ENCODINGS)])
                await trainer.pull(version)
                # The copy has moved, and what is served has not.
                assert await client.checksums() == live[0]
                await trainer.load(version)
                before, live = live, await fresh(expected)
                assert await seen(client) == live
                assert before[0] != live[0]
                wholes.append(live[0])
        assert [reply["mode"] for reply in trainer.replies] == ["seed", *["delta"] * VERSIONS]
        # The first one too: the server was started on what the copy was seeded from.
        assert [reply["mode"] for reply in trainer.updates] == ["sparse"] * VERSIONS
        await pulls_and_updates_at_once(trainer, wholes)
        await two_processes_of_one_host(trainer, a)
        await pull_and_update_in_one_request(trainer, wholes)
    spans = [span for stream in ended for span in stream.meta["weight_versions"]]
    assert len({span["version"] for span in spans}) > 1
    assert {stream.meta["finish_reason"]["type"] for stream in ended} <= {"abort", "length"}


async def pulls_and_updates_at_once(trainer: Trainer, wholes: list[dict[str, str]]) -> None:
    """An update reads one version, whatever is pulled meanwhile; and a pull ends all the same."""
    loaded, over = list[int](), asyncio.Event()

    async def update() -> None:
        while not over.is_set():
            await trainer.client.update(trainer.local, pause_mode="retract")
            loaded.append(wholes.index(await trainer.client.checksums()))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(update())
        for target in (9, 10, 2, 3, 4, 8, 0, 10):
            assert (await trainer.pull(target))["local_version"] == target
        over.set()
    assert loaded
    await trainer.client.update(trainer.local, pause_mode="retract")
    assert await trainer.client.checksums() == wholes[10]


async def two_processes_of_one_host(trainer: Trainer, base: Path) -> None:
    """They wait for each other, and the second one finds it done."""
    flags = {"--source": trainer.source, "--local": trainer.local, "--base": base, "--target": 5}
    words = [str(word) for flag in flags.items() for word in flag]
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hotswap", "pull", *words, "--json"),
        env={**os.environ, **UNTRACED},
        stdout=asyncio.subprocess.PIPE,
    )
    here, (told, _) = await asyncio.gather(trainer.pull(5), other.communicate())
    assert other.returncode == 0
    assert sorted([here["mode"], json.loads(told)["mode"]]) == ["noop", "reseed"]


async def pull_and_update_in_one_request(trainer: Trainer, wholes: list[dict[str, str]]) -> None:
    """The strategy delta-pull, whose copy is its own."""
    for version in (7, 8, 0):
        await trainer.client.update(
            trainer.source,
            strategy="delta-pull",
            weight_version=str(version),
            pause_mode="retract",
        )
        assert await trainer.client.checksums() == wholes[version]
    status, reply = await trainer.client.post(
        "/update_weights_from_disk",
        model_path=str(trainer.source),
        strategy="delta-pull",
        weight_version="11",
        pause_mode="retract",
    )
    assert (status, reply["success"], reply["retryable"]) == (400, False, True)
    assert "weight_v000011" in reply["message"]
    assert await trainer.client.checksums() == wholes[0]
