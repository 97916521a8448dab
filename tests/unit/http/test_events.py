"""``/hotswap/v1/events``: frames, resuming, bounds, and clients that go away."""

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from starlette.types import Message

from hotswap.attempt import Phase, UpdateNews
from hotswap.errors import UpdateRejected
from hotswap.events import EventLog
from hotswap.http import KindedRoute
from hotswap.http.app import core_routes
from hotswap.http.events import Events
from hotswap.http.routes import Kind
from hotswap.plugins import Plugins
from hotswap.testing.asgi_call import AsgiCall
from hotswap.types import PauseMode, Update
from tests.markdown_blocks import ROOT
from tests.unit.http.conftest import Serving

PATH = "/hotswap/v1/events"


@dataclass(frozen=True, slots=True)
class Frame:
    id: str | None
    name: str
    data: Any


def frames(text: str) -> list[Frame]:
    found = []
    for block in text.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append(Frame(fields.get("id"), fields["event"], json.loads(fields["data"])))
    return found


def log_of(serving: Serving) -> EventLog:
    log: EventLog = serving.app.state.served.observation.events
    return log


async def read_to_the_end(serving: Serving, **options: Any) -> list[Frame]:
    """Everything of a stream whose server is shutting down."""
    log_of(serving).close()
    reply = await serving.client.get(PATH, **options)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    return frames(reply.text)


async def body_of(call: AsgiCall, wanted: str) -> str:
    """Read until ``wanted`` has come."""
    text = ""
    with anyio.fail_after(60):
        while wanted not in text:
            message: Message = await call.next_message()
            text += message.get("body", b"").decode()
    return text


async def test_a_pause_an_update_and_a_resume_as_they_happen(serving: Serving) -> None:
    async with AsgiCall(serving.app, "GET", PATH) as call:
        (hello,) = frames(await body_of(call, "\n\n"))
        await serving.client.post("/pause_generation", json={"mode": "retract"})
        paused = frames(await body_of(call, "event: pause"))
        await serving.client.post("/continue_generation")
        resumed = frames(await body_of(call, "event: resume"))
        call.disconnect()

    log = log_of(serving)
    assert (hello.id, hello.name) == (f"{log.instance}-0", "hello")
    assert hello.data["state"] == "serving"
    assert hello.data["weights"]["weight_epoch"] == 0
    assert [(frame.id, frame.name) for frame in paused + resumed] == [
        (f"{log.instance}-{number}", name)
        for number, name in enumerate(["state", "pause", "state", "resume"], start=1)
    ]
    assert {key: paused[0].data[key] for key in ("old", "new", "command", "outcome", "gate")} == {
        "old": "serving",
        "new": "paused",
        "command": "pause",
        "outcome": "done",
        "gate": "retract",
    }
    assert (paused[1].data["mode"], resumed[1].data["state"]) == ("retract", "serving")


async def test_steps_of_an_update(serving: Serving) -> None:
    (*_, tell) = serving.commands.observers
    update = Update(source="/models/b", version="7", pause_mode=PauseMode.RETRACT)
    for phase in Phase:
        tell(UpdateNews(number=1, update=update, phase=phase))
    error = UpdateRejected("tensor 'x' is missing")
    tell(UpdateNews(number=1, update=update, phase=Phase.STAGING, outcome="rejected", error=error))

    _, *steps, last = await read_to_the_end(serving, params={"after": "0"})

    assert [frame.data["phase"] for frame in steps] == [
        "received",
        "staging",
        "queued",
        "committing",
        "rejected",
    ]
    assert {frame.data["update"] for frame in steps} == {1}
    assert steps[-1].data["reason"] == "tensor 'x' is missing"
    assert (steps[0].data["source"], steps[0].data["version"]) == ("/models/b", "7")
    assert last.name == "shutdown"


async def test_an_update_over_http_brings_its_costs(serving: Serving) -> None:
    report = await serving.commands.update(Update(source="/models/b"))
    (*_, tell) = serving.commands.observers
    tell(
        UpdateNews(
            number=3,
            update=Update(source="/models/b"),
            phase=Phase.COMMITTING,
            outcome="committed",
            report=report,
        )
    )

    _, done, _ = await read_to_the_end(serving, params={"after": "0"})

    assert done.data["phase"] == "committed"
    assert (done.data["staged_ms"], done.data["paused_ms"]) == (10.0, 1.5)
    assert (done.data["bytes"], done.data["weight_epoch"]) == (4096, 1)


async def test_the_header_of_a_reconnecting_browser_wins_over_its_url(serving: Serving) -> None:
    log = log_of(serving)
    for number in range(3):
        log.publish("tick", {"n": number})

    got = await read_to_the_end(
        serving, params={"after": "0"}, headers={"Last-Event-ID": log.id_of(2)}
    )

    assert [(frame.id, frame.name) for frame in got] == [
        (log.id_of(2), "hello"),
        (log.id_of(3), "tick"),
        (log.id_of(4), "shutdown"),
    ]


@pytest.mark.parametrize(
    ("asked", "reason"), [("0123456789ab-7", "other_run"), ("what?", "unknown")]
)
async def test_an_id_that_means_nothing_here_gets_a_gap_and_everything(
    serving: Serving, asked: str, reason: str
) -> None:
    log_of(serving).publish("tick", {})

    got = await read_to_the_end(serving, headers={"Last-Event-ID": asked})

    assert [frame.name for frame in got] == ["hello", "gap", "tick", "shutdown"]
    assert got[1].data == {"asked": asked, "reason": reason}


async def test_a_list_instead_of_a_stream(serving: Serving) -> None:
    log = log_of(serving)
    log.publish("tick", {"n": 1})
    log.publish("tick", {"n": 2})

    status, everything = await serving.json("GET", PATH, params={"stream": "false"})
    _, later = await serving.json(
        "GET", PATH, params={"stream": "0", "after": everything["events"][0]["id"]}
    )
    _, nothing = await serving.json("GET", PATH, params={"stream": "no", "after": later["last_id"]})

    assert status == 200
    assert [event["n"] for event in everything["events"]] == [1, 2]
    assert everything["events"][1]["event"] == "tick"
    assert everything["last_id"] == later["last_id"] == log.id_of(2)
    assert ([event["n"] for event in later["events"]], later["gap"]) == ([2], None)
    assert (nothing["events"], nothing["instance"]) == ([], log.instance)
    assert log.readers == 0


async def test_head_ends_at_once(serving: Serving) -> None:
    reply = await serving.client.head(PATH)
    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert log_of(serving).readers == 0


async def test_a_client_that_goes_away_leaves_nothing_behind(serving: Serving) -> None:
    before = asyncio.all_tasks()
    async with AsgiCall(serving.app, "GET", PATH) as call:
        await body_of(call, "hello")
        assert log_of(serving).readers == 1
        call.disconnect()
    assert log_of(serving).readers == 0
    assert asyncio.all_tasks() == before


def quick(**bounds: float) -> Plugins:
    """A second stream, with bounds that a test can wait for."""
    route = KindedRoute("/quick", Events(**bounds), kind=Kind.OPEN, methods=["GET"])
    return Plugins(routes=(route,))


async def test_a_quiet_stream_has_heartbeats(serve: Callable[..., Serving]) -> None:
    serving = serve(plugins=quick(heartbeat_s=0.01))
    async with AsgiCall(serving.app, "GET", "/quick") as call:
        text = await body_of(call, ": heartbeat\n\n: heartbeat\n\n")
        log_of(serving).publish("tick", {})
        text += await body_of(call, "event: tick")
        call.disconnect()
    assert [frame.name for frame in frames(text)] == ["hello", "tick"]


async def deaf_until(opened: anyio.Event, sent: list[Message], message: Message) -> None:
    """A client that takes the head and the greeting, and then nothing for a while."""
    sent.append(message)
    if len(sent) > 2:
        await opened.wait()


def scope_of(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [],
        "root_path": "",
    }


async def test_a_slow_reader_is_dropped_with_a_reason_and_slows_nobody(
    serving: Serving,
) -> None:
    log, opened, sent = log_of(serving), anyio.Event(), list[Message]()
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Message:
        for message in asked:
            return message
        await anyio.sleep_forever()
        raise AssertionError("sleeping for ever ended")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            serving.app,
            scope_of(PATH),
            receive,
            lambda message: deaf_until(opened, sent, message),
        )
        async with AsgiCall(serving.app, "GET", PATH) as quick_one:
            await body_of(quick_one, "hello")
            await anyio.wait_all_tasks_blocked()
            for number in range(2000):
                log.publish("tick", {"n": number})
                if number % 50 == 0:
                    await body_of(quick_one, f'"n":{number}}}')
            quick_one.disconnect()
        assert log.readers == 1
        opened.set()

    text = b"".join(message.get("body", b"") for message in sent).decode()
    hello, first, dropped = frames(text)
    assert (hello.name, first.data["n"]) == ("hello", 0)
    assert (dropped.name, dropped.data["reason"]) == ("dropped", "too_slow")
    assert dropped.data["missed"] == 2000 - 1 - 1024
    assert log.readers == 0


async def test_a_reader_that_reads_nothing_is_cut_off(
    serve: Callable[..., Serving], caplog: pytest.LogCaptureFixture
) -> None:
    serving = serve(plugins=quick(send_s=0.01))
    never, sent = anyio.Event(), list[Message]()
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Message:
        for message in asked:
            return message
        await anyio.sleep_forever()
        raise AssertionError("sleeping for ever ended")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            serving.app,
            scope_of("/quick"),
            receive,
            lambda message: deaf_until(never, sent, message),
        )
        await anyio.wait_all_tasks_blocked()
        log_of(serving).publish("tick", {})

    assert log_of(serving).readers == 0
    assert "read nothing for 0.01 s" in caplog.text


async def test_the_sixty_fifth_reader_is_refused(serving: Serving) -> None:
    with ExitStack() as connected:
        for _ in range(64):
            connected.enter_context(log_of(serving).reading(None))
        status, body = await serving.json("GET", PATH)
        assert (status, body["error"]["code"]) == (429, "overloaded")


def test_the_route_is_harmless_and_says_so() -> None:
    (route,) = [route for route in core_routes() if route.path == PATH]
    assert route.kind is Kind.OPEN


def test_every_event_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    sources = [
        (ROOT / "hotswap" / name).read_text(encoding="utf-8")
        for name in ("events/log.py", "events/sources.py", "http/events.py", "http/observation.py")
    ]
    names = set(re.findall(r'(?:publish|_frame)\(\s*"(\w+)"', "".join(sources)))
    assert {"hello", "gap", "state", "update", "dropped", "shutdown"} <= names
    assert names == set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
