"""A real server that follows a stream, and what it shows, for the tests of that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from hotswap.client import AsyncClient
from hotswap.testing.server import ServerProcess
from tests.process.evidence import PROMPTS
from tests.process.forked_server import ForkedServer
from tests.process.http_client import LIMIT_S, Client, client_of
from tests.process.in_process import load, serving

__all__ = ["KILLED", "Follow", "Followed", "follows", "fresh", "live", "seen"]

TOKENS, KILLED = 8, -9
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
        """The status once it is so; it is looked at whenever it has changed."""
        with anyio.fail_after(LIMIT_S):
            async with (
                AsyncClient(self.server.base_url) as client,
                client.events() as events,
            ):
                # The first event is that the stream has begun: nothing is missed from here on.
                async for _ in events:
                    if holds(seen := await self.status()):
                        return seen
        raise AssertionError("the events have ended")

    async def commit(self, **body: object) -> tuple[int, Any]:
        """Ask for a commit."""
        return await self.client.post("/hotswap/v1/commit", **body)


@asynccontextmanager
async def follows(
    model: Path, source: Path | str, *flags: str, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Followed]:
    """Start a server that looks often; it lives to the end, or is ended, or killed."""
    told = ("--follow", str(source), "--follow-interval-s", "0.05", "--pull-threads", "1", *flags)
    with ForkedServer(model, *told, environ=environ) as server:
        async with client_of(server.base_url) as client:
            yield Followed(server=server, client=client)
        assert server.exit_code in (None, 0, KILLED), server.log
        assert "Traceback" not in server.log, server.log


def live(version: int) -> Callable[[Follow], bool]:
    """Whether it is that version."""
    return lambda status: status["live_version"] == version


async def seen(client: Client) -> Seen:
    """Every checksum, and greedy tokens."""
    return await client.checksums(), await client.greedy(PROMPTS[:2], TOKENS)


async def fresh(directory: Path) -> Seen:
    """What a server shows that was started on ``directory``."""
    async with serving(load(directory)) as started:
        return await seen(started.client)
