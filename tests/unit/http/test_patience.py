"""A client that has waited long enough gets a 504, and its request ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from hotswap.http.dialect import generate_limit_s
from hotswap.http.errors import GenerateTimeout
from hotswap.http.patience import Patience
from hotswap.settings import Settings
from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine

SOON = 0.01
BODIES: dict[str, dict[str, object]] = {
    "/generate": {"text": "a", "rid": "r"},
    "/v1/completions": {"prompt": "a", "rid": "r"},
}
CODES = {"gr": ("generate_timeout", 504), "sglang": (504, "generate_timeout")}


@pytest.mark.parametrize(
    ("settings", "limit_s"),
    [
        ({}, 300.0),
        ({"dialect": "sglang"}, 0.0),
        ({"generate_timeout_s": 0.0}, 0.0),
        ({"dialect": "sglang", "generate_timeout_s": 2.5}, 2.5),
    ],
)
def test_the_dialect_says_how_long_unless_a_setting_does(
    settings: dict[str, Any], limit_s: float
) -> None:
    assert generate_limit_s(Settings(**settings)) == limit_s


@pytest.fixture
def impatient(serve: Callable[..., Any], dialect: str) -> Any:
    """An engine that never answers, and clients that wait for a moment."""
    engine = ScriptedEngine(reply=None)
    return serve(engine=engine, dialect=dialect, generate_timeout_s=SOON)


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_a_reply_that_does_not_come_is_a_504(impatient: Any, dialect: str) -> None:
    status, reply = await impatient.json("POST", "/generate", json=BODIES["/generate"])

    assert status == 504
    error = reply["error"]
    told = (error["code"], error["status"] if dialect == "gr" else error["type"])
    assert told == CODES[dialect]
    assert error["retryable"] is True
    assert "nothing came for 0.01 s (--generate-timeout-s)" in error["message"]
    assert impatient.engine.generations["r"].aborted.is_set()
    # Its id is free again.
    assert len(impatient.app.state.served.requests) == 0


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_so_it_is_on_openai_s_routes(impatient: Any, dialect: str) -> None:
    body = BODIES["/v1/completions"]
    status, reply = await impatient.json("POST", "/v1/completions", json=body)

    error = reply["error"]
    assert (status, error["code"], error["type"]) == (504, "generate_timeout", "server_error")
    assert impatient.engine.generations["r"].aborted.is_set()


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_wait_at_a_closed_door_counts(impatient: Any, path: str, stream: bool) -> None:
    impatient.commands.admission.door = anyio.Event()
    body = BODIES[path] | {"stream": stream}
    status, reply = await impatient.json("POST", path, json=body)

    assert (status, impatient.engine.generations) == (504, {})
    assert "--generate-timeout-s" in reply["error"]["message"]


class Clock:
    """The event loop's, which stands still but for what a test sets it ahead."""

    def __init__(self, begin_s: float) -> None:
        self._begin_s = begin_s
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return self._begin_s + self.ahead_s

    async def passing(self, work: Awaitable[Any]) -> Any:
        """What ``work`` returns, while time passes."""
        waits = asyncio.ensure_future(work)
        while not waits.done():
            self.ahead_s += SOON
            await asyncio.sleep(0)
        return waits.result()


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    loop = asyncio.get_running_loop()
    clock = Clock(loop.time())
    monkeypatch.setattr(loop, "time", clock)
    return clock


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_of_which_nothing_comes_ends_with_the_error(
    impatient: Any, path: str, clock: Clock
) -> None:
    async with AsgiCall(impatient.app, "POST", path, BODIES[path] | {"stream": True}) as call:
        assert (await call.next_message())["status"] == 200
        event, done = await clock.passing(call.next_event()), await call.next_event()
        await call.finished()

    assert "generate_timeout" in (event["error"]["code"], event["error"].get("type"))
    assert done == "[DONE]"
    assert impatient.engine.generations["r"].aborted.is_set()


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_of_a_list_only_the_prompt_that_waits_ends(impatient: Any, clock: Clock) -> None:
    body = {"text": ["a", "b"], "rid": ["r", "s"], "stream": True}
    async with AsgiCall(impatient.app, "POST", "/generate", body) as call:
        assert (await call.next_message())["status"] == 200
        impatient.engine.generations["s"].emit(b"x")
        impatient.engine.generations["s"].finish("length")
        events = [await call.next_event() for _ in range(2)]
        events += [await clock.passing(call.next_event()), await call.next_event()]
        await call.finished()

    assert events[-1] == "[DONE]"
    (waits,) = [event for event in events[:-1] if "error" in event]
    assert waits["index"] == 0
    assert impatient.engine.generations["r"].aborted.is_set()
    assert not impatient.engine.generations["s"].aborted.is_set()


async def test_five_minutes_are_enough_in_gr(serve: Callable[..., Any], clock: Clock) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    async with AsgiCall(serving.app, "POST", "/generate", BODIES["/generate"]) as call:
        await serving.engine.submitted.wait()
        clock.ahead_s += 299.0
        for _ in range(20):
            await asyncio.sleep(0)
        assert not serving.engine.generations["r"].aborted.is_set()
        clock.ahead_s += 2.0
        start, body = await call.next_message(), await call.next_message()

    assert start["status"] == 504
    assert "nothing came for 300 s" in json.loads(body["body"])["error"]["message"]


@pytest.mark.parametrize("path", BODIES)
async def test_each_event_of_a_stream_begins_the_wait_anew(
    serve: Callable[..., Any], clock: Clock, path: str
) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    async with AsgiCall(serving.app, "POST", path, BODIES[path] | {"stream": True}) as call:
        await serving.engine.submitted.wait()
        for _ in range(4):
            clock.ahead_s += 250.0
            serving.engine.generations["r"].emit(b"x")
            assert "error" not in await call.next_event()
        clock.ahead_s += 301.0
        event, done = await call.next_event(), await call.next_event()

    assert (event["error"]["code"], done) == ("generate_timeout", "[DONE]")


@pytest.mark.parametrize("dialect", ["sglang"])
async def test_in_sglang_a_request_takes_as_long_as_it_takes(
    serve: Callable[..., Any], clock: Clock, dialect: str
) -> None:
    serving = serve(engine=ScriptedEngine(reply=None), dialect=dialect)
    async with AsgiCall(serving.app, "POST", "/generate", BODIES["/generate"]) as call:
        await serving.engine.submitted.wait()
        clock.ahead_s += 1e6
        serving.engine.generations["r"].finish("length")
        assert (await call.next_message())["status"] == 200


async def test_what_is_in_time_is_returned_and_what_fails_is_raised() -> None:
    async def work() -> str:
        return "done"

    async def fail() -> str:
        raise KeyError("own")

    assert repr(Patience(300.0)) == "<Patience 300 s>"
    assert await Patience(300.0).run(work) == "done"
    assert await Patience(0).run(work) == "done"
    with pytest.raises(KeyError, match="own"):
        await Patience(300.0).run(fail)
    with pytest.raises(GenerateTimeout, match="nothing came for"):
        await Patience(SOON).run(anyio.sleep_forever)
