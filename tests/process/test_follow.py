"""``hotswap serve --follow``: a trainer publishes, and the server keeps up by itself.

What it shows once a version is live is what a server shows that was started on the whole
checkpoint of that version. Nothing here counts on time: a turn is asked for, or waited for.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from hotswap.client import AsyncClient
from hotswap.stream import Keep, directory_of, pull
from hotswap.testing.server import ServerProcess
from tests.markdown_blocks import ROOT
from tests.process import pull_faults
from tests.process.evidence import PROMPTS
from tests.process.forked_server import ForkedServer
from tests.process.http_client import LIMIT_S, Client, client_of
from tests.process.in_process import load, serving
from tests.process.stream_publisher import Publisher, publisher
from tests.tiers import mostly_long
from tests.unit.stream.faulty_disk import FaultyDisk

# The server is another process: there is little to trace in this one.
pytestmark = [pytest.mark.process, pytest.mark.no_cover]

TOKENS, KILLED = 8, -9
KEEPS = ("materialize", "log")
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
    model: Path, source: Path, *flags: str, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Followed]:
    """Start a server that looks often; it lives to the end, or is killed."""
    told = ("--follow", str(source), "--follow-interval-s", "0.05", "--pull-threads", "1", *flags)
    with ForkedServer(model, *told, environ=environ) as server:
        async with client_of(server.base_url) as client:
            yield Followed(server=server, client=client)
        assert server.exit_code in (None, KILLED), server.log
        assert "Traceback" not in server.log, server.log


def live(version: int) -> Callable[[Follow], bool]:
    """Whether it is that version."""
    return lambda status: status["live_version"] == version


async def seen(client: Client) -> Seen:
    return await client.checksums(), await client.greedy(PROMPTS[:2], TOKENS)


async def fresh(directory: Path) -> Seen:
    """What a server shows that was started on ``directory``."""
    async with serving(load(directory)) as started:
        return await seen(started.client)


@asynccontextmanager
async def trainer(a: Path, tmp_path: Path) -> AsyncIterator[Publisher]:
    """Publishes where nobody looks, so that the test says when a version is there."""
    (tmp_path / "source").mkdir()
    async with publisher(a, tmp_path / "aside", tmp_path / "expected") as trains:
        yield trains


async def shown(trains: Publisher, tmp_path: Path, version: int, encoding: str) -> Path:
    """Publish a version, and show it; the directory of its whole checkpoint."""
    expected = await trains.publish(version, encoding)
    show(directory_of(tmp_path / "aside", version), tmp_path / "source")
    return expected


def show(version: Path, source: Path) -> None:
    """At one moment it is there, whole."""
    version.rename(source / version.name)


@pytest.mark.parametrize("keep", mostly_long(KEEPS, but=["materialize"]))
async def test_by_hand(a: Path, tmp_path: Path, keep: str) -> None:
    local = tmp_path / "local"
    flags = ("--follow-local", str(local), "--local-checkpoint", keep)
    async with trainer(a, tmp_path) as trains, follows(a, tmp_path / "source", *flags) as on:
        # Nothing is published, so that it is ready with what it was started with.
        await on.until(lambda status: status["reached"] and status["state"] == "current")
        assert (await on.ready())[0] == 200
        first = await shown(trains, tmp_path, 1, "xor")
        # Told before it has looked.
        status, reply = await on.commit(version=1, wait_s=60, weight_version="one")
        assert (status, reply["version"], reply["weight_version"]) == (200, 1, "one")
        assert reply["mode"] == "sparse"
        assert reply["elements_moved"] > 0
        assert await seen(on.client) == (before := await fresh(first))
        # Pulled ahead, beside what is served.
        second = await shown(trains, tmp_path, 2, "overwrite")
        told = await on.until(lambda status: status["state"] == "waiting")
        assert (told["live_version"], told["pulled_version"], told["versions_behind"]) == (1, 2, 1)
        assert await seen(on.client) == before
        assert (await on.commit())[1]["mode"] == "sparse"
        assert (await on.commit())[1]["message"] == "Version 2 is live already."
        assert await seen(on.client) == await fresh(second)
        told = (await on.client.call("GET", "/model_info")).json()
        assert (told["weight_version"], told["model_path"]) == ("2", str(local))
        metrics = (await on.client.call("GET", "/metrics")).text
        assert 'hotswap_update_commits_total{mode="sparse"} 2.0' in metrics
        assert "hotswap_follow_live_version 2.0" in metrics


def calls_of_a_pull(a: Path, tmp_path: Path, keep: Keep) -> int:
    """How many calls to the disk it takes from version 1 to 2."""
    counting, local = FaultyDisk(), tmp_path / "counted"
    for target, disk in ((1, FaultyDisk()), (2, counting)):
        pull(local, tmp_path / "aside", target, base_dir=a, threads=1, disk=disk, keep=keep)
    return len(counting.calls)


@pytest.mark.parametrize("keep", mostly_long(KEEPS, but=[]))
async def test_killed_refused_damaged_late_and_displaced(
    a: Path, b: Path, tmp_path: Path, keep: str
) -> None:
    source, plan = tmp_path / "source", tmp_path / "plan.json"
    flags = (
        *("--follow-commit", "auto", "--follow-local", str(tmp_path / "local")),
        *("--local-checkpoint", keep, "--custom-pull-weights-pre-read-hook", pull_faults.HOOK),
    )
    faulty = {"PYTHONPATH": str(ROOT), **pull_faults.environ(plan)}
    async with trainer(a, tmp_path) as trains:
        for version in (1, 2):
            await trains.publish(version, "xor")
        calls = calls_of_a_pull(a, tmp_path, Keep(keep))
        show(directory_of(tmp_path / "aside", 1), source)
        async with follows(a, source, *flags, environ=faulty) as on:
            await on.until(live(1))
            assert await seen(on.client) == await fresh(tmp_path / "expected" / "1")
            # Half of the calls in, the files are half written.
            pull_faults.arm(plan, at=calls // 2)
            show(directory_of(tmp_path / "aside", 2), source)
            assert on.server.wait() == KILLED
        async with follows(a, source, *flags, environ=faulty) as on:
            await on.until(live(2))
            assert await seen(on.client) == await fresh(tmp_path / "expected" / "2")
            pull_faults.arm(plan, at=1, code=errno.ENOSPC)
            await shown(trains, tmp_path, 3, "xor")
            await on.until(lambda status: status["failures"] == 1)
            # By itself, once there is room again.
            await on.until(live(3))
            await trains.publish(4, "xor")
            file = min(directory_of(tmp_path / "aside", 4).glob("*.safetensors"))
            file.write_bytes(file.read_bytes()[:-1] + b"?")
            show(directory_of(tmp_path / "aside", 4), source)
            told = await on.until(lambda status: status["state"] == "failing")
            assert (told["newest_version"], told["live_version"]) == (4, 3)
            assert "version 4" in told["reason"]
            assert (await on.ready())[0] == 200
            # A whole version does without the one before it.
            expected = await trains.publish(5, "xor")
            shutil.copytree(expected, tmp_path / "aside" / "whole")
            (tmp_path / "aside" / "whole").rename(directory_of(source, 5))
            told = await on.until(live(5))
            assert await seen(on.client) == await fresh(expected)
            assert "No space left on device" in on.server.log
        await a_late_joiner(a, b, source, expected, tmp_path)


async def a_late_joiner(a: Path, b: Path, source: Path, expected: Path, tmp_path: Path) -> None:
    """It needs nothing else, and what somebody else puts there stays."""
    home = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    async with follows(a, source, environ=home) as on:
        await on.until(lambda status: status["reached"])
        assert (await on.ready())[0] == 200
        assert await seen(on.client) == await fresh(expected)
        await on.client.update(b, weight_version="mine", pause_mode="retract")
        told = await on.until(lambda status: status["state"] == "displaced")
        assert (told["live_version"], told["pulled_version"]) == (None, 5)
        assert await seen(on.client) == await fresh(b)
        status, reply = await on.commit()
        assert (status, reply["version"], reply["mode"]) == (200, 5, "full")
        assert await seen(on.client) == await fresh(expected)
