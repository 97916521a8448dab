"""``hotswap serve --follow s3://...``: a store that comes and goes, and servers that do.

A trainer publishes where nobody looks, and each version is copied to where the server looks when
the test says so, its index last. The server reaches the store through a gate; the trainer does not.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch

from hotswap.stream import Publisher
from hotswap.stream.layout import INDEX, directory_of
from hotswap.stream.objects import Objects
from tests.process.checkpoint_edits import Tensors, edited, tensors_of
from tests.process.followed import KILLED, Follow, Followed, follows, fresh, live, seen
from tests.process.http_client import LIMIT_S
from tests.process.s3_store import BUCKET, access
from tests.process.store_gate import StoreGate

pytestmark = [pytest.mark.process, pytest.mark.no_cover]

SELDOM = ("--follow-interval-s", "0.5")
"""Each look is a handful of requests, and a store of Python's is slow."""


class StoreTrainer:
    """Publishes versions of what began as ``base``, into the bucket's prefix ``name``."""

    def __init__(self, base: Path, root: Path, name: str) -> None:
        whole = Objects.at(f"s3://{BUCKET}/{name}")
        self.place = whole / "run"
        self._aside = whole / "aside"
        self._root = root
        self._newest = base
        self._publisher = Publisher(self._aside, run="a", base_dir=base, threads=1)

    def close(self) -> None:
        """Publish no more."""
        self._publisher.close()

    def shown(self, version: int) -> Path:
        """Publish ``version``, and show it; its whole checkpoint."""
        self.begun(version)
        return self.ended(version)

    def begun(self, version: int) -> None:
        """Publish ``version``, and show all of it but the index."""
        edit = partial(_stepped, seed=version)
        self._newest = edited(self._newest, self._root / "expected" / str(version), edit)
        assert self._publisher.publish(tensors_of(self._newest)).version == version
        for name in directory_of(self._aside, version).names() - {INDEX}:
            self._copy(version, name)

    def ended(self, version: int) -> Path:
        """Show the index of ``version``, which has begun; its whole checkpoint."""
        self._copy(version, INDEX)
        return self._newest

    def _copy(self, version: int, name: str) -> None:
        content = (directory_of(self._aside, version) / name).content()
        assert content is not None
        to = directory_of(self.place, version) / name
        to.store.put(to.url, content)


def _stepped(tensors: Tensors, *, seed: int) -> None:
    """One element in a hundred is another."""
    source = torch.Generator().manual_seed(seed)
    for tensor in tensors.values():
        tensor[torch.rand(tensor.shape, generator=source) < 0.01] *= -1.5


@pytest.fixture
def gate(s3_endpoint: str) -> Iterator[StoreGate]:
    """What the server takes for the store."""
    with StoreGate(s3_endpoint) as gate:
        yield gate


@pytest.fixture
def trains(
    a: Path, tmp_path: Path, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StoreTrainer]:
    """It has the store's own address."""
    for name, value in access(s3_endpoint, tmp_path / "none").items():
        monkeypatch.setenv(name, value)
    with closing(StoreTrainer(a, tmp_path, tmp_path.name)) as trains:
        yield trains


def fails(told: Follow) -> bool:
    return bool(told["state"] == "failing")


async def reaches(on: Followed, version: int) -> None:
    """Once it is live, and nothing else is to be done."""
    await on.until(lambda status: live(version)(status) and status["state"] == "current")


async def is_as(on: Followed, version: int, expected: Path) -> None:
    """Once ``version`` is live, nothing tells it from a server that was started on it."""
    await reaches(on, version)
    assert await seen(on.client) == await fresh(expected)


@pytest.mark.long  # a follower waits longer each time
async def test_a_store_that_is_away_and_comes_back(
    a: Path, tmp_path: Path, trains: StoreTrainer, gate: StoreGate
) -> None:
    flags = ("--follow-commit", "auto", "--follow-local", str(tmp_path / "local"), *SELDOM)
    trains.shown(1)
    there = {"AWS_ENDPOINT_URL": gate.url}
    async with follows(a, str(trains.place), *flags, environ=there) as on:
        await reaches(on, 1)
        assert (await on.ready())[0] == 200
        gate.refuse(503, "SlowDown")
        second = trains.shown(2)
        told = await on.until(fails)
        assert "failed 5 times" in told["reason"]
        assert (told["live_version"], told["reached"]) == (1, True)
        assert (await on.ready())[0] == 200
        gate.open()
        await is_as(on, 2, second)
        # Nobody listens.
        gate.shut()
        trains.shown(3)
        told = await on.until(fails)
        assert "see that the store can be reached, and try again" in told["reason"]
        assert (await on.commit())[1]["message"] == "Version 2 is live already."
        gate.open()
        await reaches(on, 3)
        # All of a version but the index, which is last, is none.
        trains.begun(4)
        status, reply = await on.commit(version=4, wait_s=0.1)
        assert (status, reply["error"]["code"]) == (409, "source_not_ready"), reply
        told = await on.status()
        assert (told["live_version"], told["newest_version"], told["failures"] >= 2) == (3, 3, True)
        fourth = trains.ended(4)
        await is_as(on, 4, fourth)


@pytest.mark.long
async def test_killed_in_a_read_refused_and_told_nothing(
    a: Path, tmp_path: Path, trains: StoreTrainer, gate: StoreGate
) -> None:
    flags = ("--follow-local", str(tmp_path / "local"), *SELDOM)
    first, there = trains.shown(1), {"AWS_ENDPOINT_URL": gate.url}
    gate.refuse(403, "InvalidAccessKeyId")
    async with follows(a, str(trains.place), *flags, environ=there) as on:
        told = await on.until(fails)
        assert "the store refuses listing it" in told["reason"]
        assert "see that the credentials of this process are valid" in told["reason"]
        status, reply = await on.ready()
        assert (status, reply["reasons"]) == (503, ["not_caught_up"])
        assert reply["follow"]["reason"] == told["reason"]
        status, reply = await on.commit()
        assert (status, reply["error"]["code"]) == (409, "not_pulled"), reply
        # It asks again by itself.
        gate.open()
        await is_as(on, 1, first)
        assert (await on.ready())[0] == 200
        gate.hold("/weight_v000002/model-")
        trains.shown(2)
        assert await asyncio.to_thread(gate.arrived.wait, LIMIT_S)
        os.kill(on.server.pid, signal.SIGKILL)
        assert on.server.wait() == KILLED
    third = trains.shown(3)
    # It looks at once, and then for a day no more; nobody has told it of 2 or 3.
    once = (*flags, "--follow-interval-s", "86400")
    async with follows(a, str(trains.place), *once, environ=there) as on:
        await is_as(on, 3, third)
        assert (await on.ready())[0] == 200
        fourth = trains.shown(4)
        assert (await on.client.post("/hotswap/v1/follow/notice", version=4))[0] == 200
        told = await on.until(lambda status: bool(status["state"] == "waiting"))
        assert (told["live_version"], told["pulled_version"]) == (3, 4)
        status, reply = await on.commit()
        assert (status, reply["version"], reply["mode"]) == (200, 4, "sparse")
        await is_as(on, 4, fourth)
        # A store that never answers keeps nobody from ending the server.
        gate.hold("list-type=2")
        await on.client.post("/hotswap/v1/follow/notice")
        assert await asyncio.to_thread(gate.arrived.wait, LIMIT_S)
        assert await asyncio.to_thread(on.server.stop) == 0
