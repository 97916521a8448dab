"""``hotswap serve --follow``: a trainer publishes, and the server keeps up by itself.

What it shows once a version is live is what a server shows that was started on the whole
checkpoint of that version. Nothing here counts on time: a turn is asked for, or waited for.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hotswap.stream import Keep, directory_of, pull
from tests.markdown_blocks import ROOT
from tests.process import pull_faults
from tests.process.evidence import PROMPTS
from tests.process.followed import KILLED, Followed, follows, fresh, live, seen
from tests.process.http_client import Streams
from tests.process.stream_publisher import Publisher, publisher
from tests.tiers import mostly_long
from tests.unit.stream.faulty_disk import FaultyDisk

# The server is another process: there is little to trace in this one.
pytestmark = [pytest.mark.process, pytest.mark.no_cover]

KEEPS = ("materialize", "log")


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


async def test_at_its_own_pace_beside_what_others_do(a: Path, tmp_path: Path) -> None:
    flags = ("--follow-commit", "auto", "--follow-local", str(tmp_path / "local"))
    async with trainer(a, tmp_path) as trains, follows(a, tmp_path / "source", *flags) as on:
        client = on.client
        async with Streams(client) as streams:
            stream = streams.start(PROMPTS[0], 300)
            await stream.has_tokens()
            await shown(trains, tmp_path, 1, "xor")
            # What is in flight waits for the commit, and goes on.
            await on.until(live(1))
            await stream.finished()
            assert len(stream.tokens) == 300
        await client.pause("abort")
        second = await shown(trains, tmp_path, 2, "xor")
        await on.until(live(2))
        # It commits, and leaves the gate as it is.
        assert (await client.state())["state"] == "paused"
        await client.resume()
        assert await seen(client) == await fresh(second)
        await client.done("/release_memory_occupation")
        third = await shown(trains, tmp_path, 3, "xor")
        told = await on.until(lambda status: status["pulled_version"] == 3)
        assert told["state"] in ("pulling", "waiting")
        assert (await client.state())["state"] == "sleeping"
        await client.done("/resume_memory_occupation")
        told = await on.until(live(3))
        # Nothing that was tried meanwhile.
        assert told["failures"] == 0, told
        assert await seen(client) == await fresh(third)


@pytest.mark.long
@pytest.mark.parametrize(
    ("keep", "modes"),
    # One of them pulls, and knows what has changed; the other one takes the delta back, but for
    # the first, for it has not seen the base there. A log tells it at once.
    [("materialize", {"sparse": 5, "full": 1}), ("log", {"sparse": 6, "full": 0})],
)
async def test_servers_that_share_their_directory(
    a: Path, tmp_path: Path, keep: str, modes: Mapping[str, int]
) -> None:
    source = tmp_path / "source"
    local = ("--follow-local", str(tmp_path / "local"), "--local-checkpoint", keep)
    flags = ("--follow-commit", "auto", *local)
    async with (
        trainer(a, tmp_path) as trains,
        follows(a, source, *flags) as one,
        follows(a, source, *flags) as two,
    ):
        for on in (one, two):
            await on.until(lambda status: status["pulled_version"] == 0)
        for version in (1, 2, 3):
            expected = await fresh(await shown(trains, tmp_path, version, "xor"))
            for on in (one, two):
                await on.until(live(version))
                assert await seen(on.client) == expected
        counts = [await commits(on) for on in (one, two)]
        assert {mode: sum(of.get(mode, 0) for of in counts) for mode in modes} == modes


async def commits(on: Followed) -> dict[str, int]:
    """How many there were of each mode."""
    lines = (await on.client.call("GET", "/metrics")).text.splitlines()
    name = "hotswap_update_commits_total{mode="
    found = [line.removeprefix(name).split() for line in lines if line.startswith(name)]
    return {mode.strip('"}'): int(float(count)) for mode, count in found}


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
