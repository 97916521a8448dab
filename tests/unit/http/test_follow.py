"""A server that follows a stream, as its clients see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotswap.follow import FollowStatus
from hotswap.http import create_app
from hotswap.http.served import Served
from hotswap.plugins import Plugins
from hotswap.settings import Settings
from hotswap.testing.scripted_engine import ScriptedEngine
from hotswap.types import PauseMode
from tests.unit.follow.following import MANUAL, Following, following
from tests.unit.stream.streams import Stream

COMMIT, NOTICE = "/hotswap/v1/commit", "/hotswap/v1/follow/notice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A follower behind its routes."""

    on: Following
    served: Served
    client: httpx.AsyncClient

    async def get(self, path: str) -> Any:
        reply = await self.client.get(path)
        assert reply.status_code == 200
        return reply.json()

    async def post(self, path: str, **body: object) -> tuple[int, Any]:
        reply = await self.client.post(path, json=body)
        return reply.status_code, reply.json()


@asynccontextmanager
async def served(stream: Stream, dialect: str = "gr") -> AsyncIterator[Behind]:
    async with following(stream, pace=MANUAL) as on:
        settings = Settings(allow_weight_update=True, model=str(stream.base), dialect=dialect)
        app = create_app(
            on.server, ScriptedEngine(), settings, plugins=Plugins(), follower=on.follower
        )
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://hotswap.test") as client:
            yield Behind(on=on, served=app.state.served, client=client)


async def test_it_is_ready_with_its_version(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    mended = stream.source.rename(tmp_path / "away")
    async with served(stream) as server:
        await server.on.look()
        reply = await server.client.get("/ready")
        told = reply.json()
        assert (reply.status_code, told["reasons"]) == (503, ["not_caught_up"])
        assert told["follow"]["state"] == "failing"
        assert "cannot be listed" in told["follow"]["reason"]
        mended.rename(stream.source)
        assert (await server.post(NOTICE, version=1))[0] == 200
        await server.on.until(lambda status: status.reached)
        assert (await server.get("/ready")) == {"ready": True, "reasons": [], "state": "serving"}
        assert server.served.model_path == str(stream.local)


async def test_what_is_pulled_is_committed_as_told(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with served(stream) as server:
        await server.on.until(lambda status: status.reached)
        stream.add("xor")
        await server.on.look()
        body = {"weight_version": "two", "token_step": 7, "pause_mode": "in_place"}
        status, reply = await server.post(COMMIT, version=2, flush_cache=False, **body)
        assert (status, reply["version"], reply["update_id"]) == (200, 2, None)
        assert (reply["success"], reply["message"]) == (True, "Version 2 is live.")
        assert (reply["weight_version"], reply["token_step"], reply["weight_epoch"]) == (
            "two",
            7,
            2,
        )
        told = server.on.server.received[-1]
        assert (told.pause_mode, told.flush_cache) == (PauseMode.IN_PLACE, False)
        status, reply = await server.post(COMMIT, version=2)
        assert (status, reply["message"]) == (200, "Version 2 is live already.")
        assert (reply["tensors_loaded"], reply["weight_epoch"]) == (0, 2)
        assert len(server.on.server.received) == 2


@pytest.mark.parametrize(("dialect", "statuses"), [("gr", (409, 409)), ("sglang", (400, 400))])
async def test_what_is_not_there_says_why(
    tmp_path: Path, dialect: str, statuses: tuple[int, int]
) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    async with served(stream, dialect) as server:
        await server.on.until(lambda status: status.reached)
        stream.add("xor")
        before = await server.post(COMMIT, version=1)
        missing = await server.post(COMMIT, version=9)
        assert (before[0], missing[0]) == statuses
        for _, reply in (before, missing):
            assert (reply["retryable"], reply["local_version"]) == (True, 2)
        assert "holds version 2, wanted version 1" in before[1]["message"]
        assert "version 9 is not at the source (yet)" in missing[1]["message"]
        assert [server.on.live, len(server.on.server.received)] == ["2", 1]


async def test_with_time_to_wait_what_is_not_pulled_is_pulled(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with served(stream) as server:
        await server.on.until(lambda status: status.reached)
        stream.add("xor")
        # Whatever there is.
        assert (await server.post(COMMIT, wait_s=60))[1]["version"] == 2
        # What is there only later: everybody who looks meanwhile sees who waits.
        asked = asyncio.create_task(server.post(COMMIT, version=3, wait_s=60))
        await server.on.until(lambda status: status.looks >= 3)
        stream.add("xor")
        assert (await server.post(NOTICE, version=3))[1]["success"]
        assert (await asked)[1]["version"] == 3
        # And an older one.
        assert (await server.post(COMMIT, version=1, wait_s=60))[1]["version"] == 1
        assert server.on.holds(1)
        status, reply = await server.post(COMMIT, version=9, wait_s=0.01)
        assert (status, reply["error"]["code"]) == (409, "source_not_ready")
        assert server.on.live == "1"


async def test_a_client_that_goes_away_has_wished_for_nothing(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    async with served(stream) as server:
        await server.on.until(lambda status: status.reached)
        asked = asyncio.create_task(server.on.follower.commit(5, wait_s=86400))
        await server.on.until(lambda status: status.looks >= 2)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        stream.add("xor")
        assert (await server.on.look()).pulled == 3


@pytest.mark.parametrize(
    "body",
    [{"version": -1}, {"version": 10**18}, {"version": "one"}, {"wait_s": -1}],
    ids=["below", "above", "text", "time"],
)
async def test_what_can_be_no_commit(tmp_path: Path, body: Mapping[str, Any]) -> None:
    async with served(Stream(tmp_path)) as server:
        status, reply = await server.post(COMMIT, **body)
        assert (status, reply["error"]["code"]) == (400, "validation_error")


async def test_a_session_has_no_version(tmp_path: Path) -> None:
    async with served(Stream(tmp_path)) as server:
        status, reply = await server.post(COMMIT, update_id="mine", version=1)
        assert (status, "one or the other" in reply["message"]) == (400, True)


async def test_what_follows_nothing_says_so(serving: Any) -> None:
    status, reply = await serving.json("POST", COMMIT, json={"version": 1})
    assert (status, "update_id is missing" in reply["message"]) == (400, True)
    assert "start the server with --follow SOURCE, or send" in reply["message"]
    status, reply = await serving.json("POST", NOTICE)
    assert (status, "--follow SOURCE" in reply["error"]["message"]) == (404, True)


async def test_state_metrics_and_events_say_how_it_stands(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    async with served(stream) as server:
        await server.on.until(lambda status: status.reached)
        stream.add("xor")
        stream.add("xor")
        seen = await server.on.look()
        for path in ("/status", "/hotswap/v1/state"):
            follow = (await server.get(path))["follow"]
            assert follow["state"] == "waiting"
            assert (follow["newest_version"], follow["pulled_version"]) == (3, 3)
            assert (follow["live_version"], follow["versions_behind"]) == (1, 2)
            assert follow["bytes_behind"] == seen.behind.size_bytes > 0
            assert follow["seconds_behind"] > 0
        text = (await server.client.get("/metrics")).text
        lines = dict(
            line.split() for line in text.splitlines() if line.startswith("hotswap_follow")
        )
        assert lines.pop("hotswap_follow_seconds_behind") != "0.0"
        assert float(lines.pop("hotswap_follow_looks_total")) == seen.looks
        assert lines == {
            "hotswap_follow_versions_behind": "2.0",
            "hotswap_follow_bytes_behind": str(float(seen.behind.size_bytes)),
            "hotswap_follow_newest_version": "3.0",
            "hotswap_follow_pulled_version": "3.0",
            "hotswap_follow_live_version": "1.0",
            "hotswap_follow_displaced": "0.0",
            "hotswap_follow_reached": "1.0",
            "hotswap_follow_failing": "0.0",
            "hotswap_follow_failures_total": "0.0",
        }
        told = (await server.get("/hotswap/v1/events?stream=false&after=0"))["events"]
        states = [event["state"] for event in told if event["event"] == "follow"]
        assert states[-2:] == ["pulling", "waiting"]
        # Its pulls are told of as those of everybody.
        assert {event["event"] for event in told} >= {"pull", "follow"}


def test_a_status_is_one_line_for_people() -> None:
    status = FollowStatus(source="/s", local="/l", commit="auto", newest=7, live=6)
    assert str(status) == "looking (live 6, pulled -, newest 7)"
