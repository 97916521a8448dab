"""What comes while a follower pulls or commits, and what it leaves when it is told to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hotswap_disk import DiskStrategy

from hotswap.errors import UpdateRejected
from hotswap.follow import FOLLOW, FollowState
from hotswap.follow.mark import VersionMark, mark_in
from hotswap.follow.strategy import FollowStrategy, options_of
from hotswap.plugin_hooks import PreReadHook
from hotswap.pulls import Puller
from hotswap.stream import NotPulled, pull
from hotswap.stream.state import Reserved
from hotswap.testing.fake_followed import FakeFollowed
from hotswap.types import Placement, Update
from tests.unit.follow.following import LIMIT_S, MANUAL, Following, following
from tests.unit.stream.streams import Stream


class Gate:
    """A pre-read hook that keeps every pull waiting while it is closed."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, source: str, version: str | None) -> None:
        self.arrived.set()
        await self.open.wait()

    def close(self) -> None:
        self.arrived.clear()
        self.open.clear()


@asynccontextmanager
async def held(stream: Stream, gate: Gate) -> AsyncIterator[Following]:
    """Follow ``stream``, and be in the middle of a pull of version 2."""
    hooks = [PreReadHook(name="gate", call=gate)]
    puller = Puller.from_options({"model": str(stream.base)}, hooks=hooks)
    async with following(stream, pace=MANUAL, puller=puller) as on:
        await on.until(lambda status: status.reached)
        stream.add("xor")
        gate.close()
        on.follower.notice(2)
        with anyio.fail_after(LIMIT_S):
            await gate.arrived.wait()
        try:
            yield on
        finally:
            gate.open.set()


async def test_a_commit_in_the_middle_of_a_pull(tmp_path: Path) -> None:
    stream, gate = Stream(tmp_path, "xor"), Gate()
    async with held(stream, gate) as on:
        assert (on.follower.status.state, on.follower.status.target) == (FollowState.PULLING, 2)
        for version in (None, 2):
            with pytest.raises(NotPulled, match="version 2 is being pulled") as caught:
                await on.follower.commit(version)
            assert caught.value.local_version == 1
            assert "wait_s, of hotswap commit --wait" in str(caught.value)
        with pytest.raises(NotPulled, match="version 2 is being pulled"):
            await on.follower.commit(2, wait_s=0.01)
        waits = asyncio.create_task(on.follower.commit(2, wait_s=LIMIT_S))
        await anyio.wait_all_tasks_blocked()
        gate.open.set()
        report = await waits
        assert report is not None
        assert (report.stamp.version, on.holds(2)) == ("2", True)
        assert repr(on.follower).startswith("<Follower of ")


async def test_two_commits_at_once_are_one(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    server = FakeFollowed(gate=anyio.Event())
    async with following(stream, pace=MANUAL, server=server, ready_version=0) as on:
        await on.look()
        one, two = (asyncio.create_task(on.follower.commit()) for _ in range(2))
        with anyio.fail_after(LIMIT_S):
            await server.started.wait()
        assert on.follower.status.state == "committing"
        await anyio.wait_all_tasks_blocked()
        assert server.gate is not None
        server.gate.set()
        assert [report is None for report in await asyncio.gather(one, two)] == [False, True]
        assert len(server.received) == 1


async def test_it_ends_in_the_middle_of_a_pull_and_another_one_goes_on(tmp_path: Path) -> None:
    stream, gate = Stream(tmp_path, "xor"), Gate()
    async with held(stream, gate) as on:
        on.follower.stop()
        gate.open.set()
    # It did not go on to the end.
    assert (mark_in(stream.local), on.live) == (mark_of(stream, 1, tmp_path), "1")
    async with following(stream) as on:
        seen = await on.until(lambda status: status.reached)
        assert (seen.live, on.holds(2)) == (2, True)


def mark_of(stream: Stream, version: int, tmp_path: Path) -> VersionMark:
    """What a directory says that holds that version of the stream."""
    pull(tmp_path / "other", stream.source, version, base_dir=stream.base)
    found = mark_in(tmp_path / "other")
    assert found is not None
    return found


async def test_it_ends_before_it_has_begun(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with following(stream) as on:
        on.follower.stop()
        on.follower.stop()
    assert not Reserved(stream.local).state.exists()


async def test_nothing_was_pulled_yet(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    stream.source.rename(tmp_path / "away")
    async with following(stream) as on:
        await on.look()
        with pytest.raises(NotPulled, match=r"holds no version \(.*cannot be listed") as caught:
            await on.follower.commit()
        assert caught.value.local_version is None


async def test_what_somebody_else_has_pulled_there_is_not_committed_as_another(
    tmp_path: Path,
) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    one, two = (mark_of(stream, version, tmp_path) for version in (1, 2))
    copy = str(tmp_path / "other")
    strategy = FollowStrategy(DiskStrategy())
    update = Update(source=copy, strategy=FOLLOW, options=options_of(two))
    async with strategy.open(update, Placement()) as stage:
        assert len(stage.manifest) == len(stream.tensors[0])
    with pytest.raises(NotPulled, match=r"at version 2 .* by now, wanted version 1"):
        async with strategy.open(replace(update, options=options_of(one)), Placement()):
            pass
    with pytest.raises(NotPulled, match="no version that a pull left by now"):
        async with strategy.open(replace(update, source=str(stream.base)), Placement()):
            pass


async def test_an_auto_commit_gives_way_to_other_weights(tmp_path: Path) -> None:
    server = FakeFollowed()
    with pytest.raises(UpdateRejected):
        await server.update(Update(source=str(tmp_path), only_epoch=7))
    stream = Stream(tmp_path, "xor")
    async with following(stream, server=server) as on:
        await on.look()
    assert server.received[-1].only_epoch == 0
