"""A follower turn by turn: what it pulls, what it commits, and what it leaves alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hotswap.errors import UpdateFailed, UpdateRejected
from hotswap.follow import FollowState
from hotswap.state import Command, Outcome, Situation
from hotswap.stream.layout import directory_of
from hotswap.testing.fake_followed import FakeFollowed
from hotswap.types import PauseMode, Scope, Update
from tests.unit.follow.following import MANUAL, damage, following
from tests.unit.stream.streams import Stream


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path)


async def test_at_its_own_pace_it_commits_what_is_published(stream: Stream) -> None:
    async with following(stream) as on:
        first = await on.look()
        # Nothing is published: the copy begins with the base, which is live already.
        assert (first.state, first.pulled, first.live, first.newest) == ("current", 0, 0, None)
        assert first.reached
        assert on.server.received == []
        for version, encoding in enumerate(("xor", "overwrite", "full"), start=1):
            stream.add(encoding)
            seen = await on.look()
            assert (seen.state, seen.live, seen.pulled) == ("current", version, version)
            assert (on.live, on.holds(version)) == (str(version), True)
            assert (seen.behind.versions, seen.behind.size_bytes, seen.seconds_behind) == (0, 0, 0)
        assert [update.pause_mode for update in on.server.received] == [PauseMode.RETRACT] * 3
        assert all(update.flush_cache for update in on.server.received)
        states = [status.state for status in on.told]
        assert states == ["pulling", "current", *["pulling", "committing", "current"] * 3]


async def test_a_late_joiner_pulls_the_newest_and_then_is_ready(tmp_path: Path) -> None:
    stream = Stream(tmp_path, *["xor"] * 5)
    async with following(stream, pace=MANUAL) as on:
        seen = await on.until(lambda status: status.reached)
        assert (seen.state, seen.live, on.live) == ("current", 5, "5")
        # From here on somebody has to say so.
        stream.add("xor")
        seen = await on.look()
        assert (seen.state, seen.live, seen.pulled) == ("waiting", 5, 6)
        assert (on.live, on.holds(6), seen.reached) == ("5", True, True)
        assert seen.behind.versions == 1
        assert seen.behind.size_bytes > 0
        assert seen.seconds_behind > 0
        report = await on.follower.commit()
        assert report is not None
        assert (report.stamp.version, on.follower.status.state) == ("6", "current")
        assert await on.follower.commit() is None
        assert len(on.server.received) == 2


@pytest.mark.parametrize(("ready", "reached"), [(0, True), (2, True), (3, False)])
async def test_ready_with_a_version_that_was_named(
    tmp_path: Path, ready: int, reached: bool
) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    async with following(stream, pace=MANUAL, ready_version=ready) as on:
        assert (await on.look()).reached is reached
        stream.add("xor")
        assert (await on.look()).reached
        # It commits by itself as far as that, and no further.
        assert on.live == {0: None, 2: "2", 3: "3"}[ready]


async def test_started_again_it_goes_on_from_its_directory(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    async with following(stream) as on:
        await on.until(lambda status: status.reached)
    moved = stream.source.rename(tmp_path / "away")
    async with following(stream) as on:
        seen = await on.look()
        # The source is away, and what is held is served all the same.
        assert (seen.state, seen.kind, on.live) == ("failing", "SourceNotReady", "2")
        assert not seen.reached
        moved.rename(stream.source)
        seen = await on.look()
        assert (seen.state, seen.reached, len(on.server.received)) == ("current", True, 1)


async def test_a_source_may_come_later(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    later = tmp_path / "runs" / "later"
    async with following(stream, source=later) as on:
        seen = await on.look()
        assert (seen.state, seen.kind, seen.reached) == ("failing", "SourceNotReady", False)
        assert f"{later}: cannot be listed (No such file or directory)" in (seen.reason or "")
        later.parent.mkdir()
        stream.source.rename(later)
        seen = await on.look()
        assert (seen.state, seen.live, seen.reached, seen.reason) == ("current", 1, True, None)


async def test_versions_that_were_missed_are_one_commit(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with following(stream) as on:
        await on.until(lambda status: status.reached)
        for _ in range(3):
            stream.add("xor")
        seen = await on.look()
        assert (seen.live, len(on.server.received), on.holds(4)) == (4, 2, True)


async def test_turns_come_by_themselves(stream: Stream) -> None:
    async with following(stream, interval_s=0.01) as on:
        await on.until(lambda status: status.reached)
        stream.add("xor")
        await on.until(lambda status: status.live == 1)
        stream.add("xor")
        await on.until(lambda status: status.live == 2)


async def test_a_damaged_version_is_passed_by_and_tried_again(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with following(stream) as on:
        await on.until(lambda status: status.reached)
        stream.add("xor")
        stream.add("xor")
        mend = damage(stream, 3)
        seen = await on.look()
        # As far as it goes.
        assert (seen.state, seen.kind, seen.live, seen.pulled) == ("failing", "DeltaDamaged", 2, 2)
        assert "version 3, tensor" in (seen.reason or "")
        assert (seen.newest, seen.behind.versions) == (3, 1)
        told = len(on.told)
        # The same trouble is told once.
        await on.follower.commit(wait_s=60)
        assert [s for s in on.told[told:] if s.state is FollowState.FAILING][1:] == []
        mend()
        seen = await on.look()
        assert (seen.state, seen.live, on.holds(3)) == ("current", 3, True)


async def test_a_whole_version_ends_the_trouble_with_one_before_it(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    damage(stream, 2)
    async with following(stream) as on:
        seen = await on.look()
        assert (seen.state, seen.live) == ("failing", 1)
        stream.add("full")
        seen = await on.look()
        assert (seen.state, seen.live, seen.reason) == ("current", 3, None)


async def test_a_version_is_not_pulled_before_it_is_whole(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with following(stream) as on:
        await on.until(lambda status: status.reached)
        directory_of(stream.source, 2).mkdir()
        seen = await on.look()
        assert (seen.state, seen.newest, seen.live, seen.failures) == ("current", 1, 1, 0)


async def test_pruned_versions_are_no_trouble(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with following(stream) as on:
        await on.until(lambda status: status.reached)
        for encoding in ("xor", "full", "xor"):
            stream.add(encoding)
        for gone in (1, 2):
            shutil.rmtree(directory_of(stream.source, gone))
        seen = await on.look()
        assert (seen.state, seen.live, on.holds(4)) == ("current", 4, True)


async def test_a_version_that_went_before_is_not_the_newest(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor", "xor")
    async with following(stream, pace=MANUAL) as on:
        await on.until(lambda status: status.reached)
        await on.follower.commit(2, wait_s=60)
        seen = on.follower.status
        assert (seen.state, seen.live, seen.newest, seen.behind.versions) == ("waiting", 2, 3, 1)


async def test_another_run_in_the_same_place(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor", "xor")
    async with following(stream) as on:
        await on.until(lambda status: status.reached)
        other = Stream(tmp_path / "other", "overwrite")
        shutil.rmtree(stream.source)
        stream.source.mkdir()
        seen = await on.look()
        # No version at all, and there it stays.
        assert (seen.live, seen.newest, on.live) == (3, None, "3")
        other.source.joinpath("weight_v000001").rename(stream.source / "weight_v000001")
        # Not at the first look: a listing may lag.
        assert (await on.look()).live == 3
        assert (await on.look()).live == 3
        seen = await on.look()
        assert (seen.state, seen.live, on.live) == ("current", 1, "1")
        stream.tensors = other.tensors
        assert on.holds(1)


async def test_another_version_of_the_same_number(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with following(stream) as on:
        await on.until(lambda status: status.reached)
        other = Stream(tmp_path / "other", "overwrite")
        shutil.rmtree(stream.source)
        other.source.rename(stream.source)
        seen = await on.look()
        assert (seen.state, seen.live, len(on.server.received)) == ("current", 1, 2)
        stream.tensors = other.tensors
        assert on.holds(1)


async def test_a_notice_of_what_is_not_listed_is_looked_for(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with following(stream) as on:
        await on.until(lambda status: status.reached)
        on.follower.notice(7)
        seen = await on.look()
        assert (seen.state, seen.live, seen.newest, seen.failures) == ("current", 1, 1, 0)


async def test_weights_of_somebody_else_stay_until_a_commit_is_asked_for(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with following(stream) as on:
        await on.until(lambda status: status.reached)
        await on.server.update(Update(source=str(tmp_path), version="mine"))
        assert on.follower.status.state == "displaced"
        stream.add("xor")
        seen = await on.look()
        assert (seen.state, seen.live, seen.pulled, on.live) == ("displaced", None, 2, "mine")
        assert "called 'mine'" in (seen.reason or "")
        assert (seen.is_displaced, seen.behind.versions) == (True, 1)
        await on.follower.commit()
        assert (on.follower.status.state, on.live) == ("current", "2")
        stream.add("xor")
        assert (await on.look()).live == 3


async def test_a_label_of_somebody_else_is_his_too(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with following(stream) as on:
        await on.until(lambda status: status.reached)
        await on.server.relabel("mine")
        stream.add("xor")
        seen = await on.look()
        assert (seen.state, on.live) == ("displaced", "mine")


async def test_a_trainer_who_loads_the_followed_directory_commits_too(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with following(stream, pace=MANUAL) as on:
        await on.until(lambda status: status.reached)
        stream.add("xor")
        await on.look()
        await on.server.update(Update(source=str(stream.local), version="two"))
        seen = on.follower.status
        assert (seen.state, seen.live, on.live) == ("current", 2, "two")
        # A part of it is no version.
        await on.server.update(Update(source=str(stream.local), scope=Scope.PARTIAL))
        assert on.follower.status.state == "displaced"


async def test_nothing_is_committed_between_the_chunks_of_a_session(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    server = FakeFollowed()
    session = server.sessions.begin(update_id="mine")
    async with following(stream, server=server) as on:
        seen = await on.look()
        assert (seen.state, seen.pulled, seen.live, seen.reached) == ("waiting", 1, 0, False)
        await server.sessions.abort(session.update_id)
        assert (await on.look()).live == 1


async def test_nor_beside_an_update(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    server = FakeFollowed(updates=[{"source": "somewhere"}])
    async with following(stream, server=server) as on:
        assert (await on.look()).state == "waiting"
        server.updates.clear()
        assert (await on.look()).live == 1


async def test_released_memory_is_waited_for(tmp_path: Path) -> None:
    stream, weights = Stream(tmp_path, "xor"), frozenset({"weights"})
    async with following(stream) as on:
        await on.until(lambda status: status.reached)

        def moved(command: Command) -> None:
            now = Situation(releases=weights, restored=True)
            on.server.machine.begin(command, now)
            on.server.machine.finish(Outcome.DONE, now)

        moved(Command.SLEEP)
        stream.add("xor")
        seen = await on.look()
        # Pulled ahead all the same, and no failure: it is the trainer's turn.
        assert (seen.state, seen.pulled, seen.live, seen.failures) == ("waiting", 2, None, 0)
        assert len(on.server.received) == 1
        moved(Command.WAKE)
        # At once, and not when the interval is over.
        seen = await on.until(lambda status: status.live == 2)
        assert len(on.server.received) == 2


@pytest.mark.parametrize("error", [UpdateRejected("wrong shape"), UpdateFailed("torn")])
async def test_a_commit_that_fails_is_tried_again(tmp_path: Path, error: Exception) -> None:
    stream = Stream(tmp_path, "xor")
    server = FakeFollowed(refusal=error)
    async with following(stream, server=server) as on:
        seen = await on.look()
        assert (seen.state, seen.reason, seen.live) == ("failing", str(error), 0)
        assert (seen.pulled, seen.reached) == (1, False)
        server.refusal = None
        seen = await on.look()
        assert (seen.state, seen.live, seen.reason) == ("current", 1, None)


async def test_what_nobody_foresaw_ends_no_follower(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(tmp_path, "xor")
    server = FakeFollowed(refusal=RuntimeError("a bug"))
    async with following(stream, server=server) as on:
        assert (await on.look()).kind == "RuntimeError"
        assert "Traceback" in caplog.text
        server.refusal = None
        assert (await on.look()).live == 1


async def test_a_delta_on_a_version_that_nobody_has_is_a_trouble(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with following(stream) as on:
        await on.until(lambda status: status.reached)
        stream.add("xor")
        shutil.rmtree(directory_of(stream.source, 2))
        stream.add("xor")
        seen = await on.look()
        assert (seen.state, seen.kind, seen.live) == ("failing", "VersionMissing", 1)
