"""``hotswap serve --follow``: a trainer publishes, and the server keeps up by itself.

What it shows once a version is live is what a server shows that was started on the whole
checkpoint of that version. Nothing here counts on time: a turn is asked for, or waited for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from hotswap.testing.server import ServerProcess
from tests.process.evidence import PROMPTS
from tests.process.forked_server import ForkedServer
from tests.process.http_client import LIMIT_S, Client, client_of
from tests.process.in_process import load, serving
from tests.process.stream_publisher import Publisher, publisher

# The server is another process: there is little to trace in this one.
pytestmark = [pytest.mark.process, pytest.mark.no_cover]

TOKENS = 8
Seen = tuple[dict[str, str], list[list[int]]]
Follow = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A server that follows ``source``, and its client."""

    server: ServerProcess
    client: Client

    async def status(self) -> Follow:
        """What ``/status`` says of following."""
        reply = await self.client.call("GET", "/status")
        assert reply.status_code == 200
        follow: Follow = reply.json()["follow"]
        return follow

    async def ready(self) -> tuple[int, Any]:
        """Status and body of the probe."""
        reply = await self.client.call("GET", "/ready")
        return reply.status_code, reply.json()

    async def until(self, holds: Callable[[Follow], bool]) -> Follow:
        """The status once it is so: asked for again and again, as an operator does."""
        with anyio.fail_after(LIMIT_S):
            while not holds(seen := await self.status()):
                await anyio.sleep(0.02)
        return seen

    async def commit(self, **body: object) -> tuple[int, Any]:
        """Ask for a commit."""
        return await self.client.post("/hotswap/v1/commit", **body)


@asynccontextmanager
async def follows(model: Path, source: Path, *flags: str) -> AsyncIterator[Followed]:
    """Start a server that looks often."""
    told = ("--follow", str(source), "--follow-interval-s", "0.05", "--pull-threads", "1", *flags)
    with ForkedServer(model, *told) as server:
        async with client_of(server.base_url) as client:
            yield Followed(server=server, client=client)
        assert server.exit_code is None, server.log
        assert "Traceback" not in server.log, server.log


async def seen(client: Client) -> Seen:
    return await client.checksums(), await client.greedy(PROMPTS[:2], TOKENS)


async def fresh(directory: Path) -> Seen:
    """What a server shows that was started on ``directory``."""
    async with serving(load(directory)) as started:
        return await seen(started.client)


@asynccontextmanager
async def trainer(a: Path, tmp_path: Path) -> AsyncIterator[Publisher]:
    (tmp_path / "source").mkdir()
    async with publisher(a, tmp_path / "source", tmp_path / "expected") as trains:
        yield trains


@pytest.mark.parametrize("keep", ["materialize", "log"])
async def test_at_its_own_pace_then_by_hand_and_started_again(
    a: Path, tmp_path: Path, keep: str
) -> None:
    source, local = tmp_path / "source", tmp_path / "local"
    flags = ("--follow-local", str(local), "--local-checkpoint", keep)
    async with trainer(a, tmp_path) as trains:
        async with follows(a, source, *flags, "--follow-commit", "auto") as on:
            await on.until(lambda status: status["reached"] and status["state"] == "current")
            assert (await on.ready())[0] == 200
            for version in (1, 2, 3):
                expected = await trains.publish(version, "xor")
                await on.until(lambda status: status["live_version"] == version)
                assert await seen(on.client) == await fresh(expected)
            told = (await on.client.call("GET", "/model_info")).json()
            assert (told["weight_version"], told["model_path"]) == ("3", str(local))
            metrics = (await on.client.call("GET", "/metrics")).text
            assert 'hotswap_update_commits_total{mode="sparse"} 3.0' in metrics
            assert "hotswap_follow_live_version 3.0" in metrics
        await trains.publish(4, "overwrite")
        async with follows(a, source, *flags) as on:
            # It had gone on meanwhile, and one who comes again is as one who comes late.
            await on.until(lambda status: status["reached"])
            expected = await trains.publish(5, "xor")
            assert (await on.status())["live_version"] == 4
            status, reply = await on.commit(version=5, wait_s=60, weight_version="five")
            assert (status, reply["version"], reply["weight_version"]) == (200, 5, "five")
            assert reply["mode"] == "sparse"
            assert reply["elements_moved"] > 0
            assert await seen(on.client) == await fresh(expected)
            assert (await on.commit())[1]["message"] == "Version 5 is live already."


