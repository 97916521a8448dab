"""Server-sent events: in whatever pieces they come, and however often it breaks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotswap.client.errors import NoAnswer, RequestRefused
from hotswap.client.feed import Feed
from hotswap.client.session import ServerKind
from hotswap.client.sse import EventParser
from hotswap.errors import QueueFull
from tests.unit.client.script import LOST, NEVER_SENT, Script, raised, reply

HELLO = b'id: x-4\nevent: hello\ndata: {"state":"serving"}\n\n'
PAUSE = 'id: x-5\nevent: pause\ndata: {"mode":"retract é"}\n\n'.encode()
BEAT = b": heartbeat\n\n"
END = b"id: x-6\nevent: shutdown\ndata: {}\n\n"
WHOLE = HELLO + BEAT + PAUSE + END


def feed(script: Script, after: str | None = None) -> Feed:
    return Feed(script.session, after=after, reconnect_s=5.0)


def names(script: Script, reader: Feed) -> list[str]:
    found: list[str] = []
    while (event := script.run(reader.next(), more=True)) is not None:
        found.append(event.name)
    assert script.answers == []
    return found


# How fast a busy machine draws examples says nothing about the parser.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, len(WHOLE)), max_size=8), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_cut_gives_the_same_events(cuts: list[int], end: bytes) -> None:
    text = WHOLE.replace(b"\n", end)
    parser = EventParser()
    places = [0, *sorted(cuts), len(text)]
    found = [event for begin, stop in pairwise(places) for event in parser.feed(text[begin:stop])]
    # A lone carriage return at the very end may still become a line's end.
    found += parser.feed(b"\n") if end == b"\r" else []
    assert [(event.id, event.name) for event in found] == [
        ("x-4", "hello"),
        ("x-5", "pause"),
        ("x-6", "shutdown"),
    ]
    assert found[1].tells == {"mode": "retract é"}


def test_what_is_no_json_object_is_told_all_the_same() -> None:
    one, two = EventParser().feed(b"data: [1]\n\nevent: x\ndata: a\ndata: b\n\n")
    assert (one.name, one.tells, one.id) == ("message", {"value": [1]}, None)
    assert two.tells == {"text": "a\nb"}


def test_an_event_without_an_end_is_not_kept_for_ever() -> None:
    parser = EventParser()
    parser.feed(b"data: " + b"x" * 2**23)
    with pytest.raises(ValueError, match="no end"):
        parser.feed(b"x" * 2**23)
    assert "characters of an event" in repr(EventParser())


def test_events_end_when_the_server_says_so() -> None:
    script = Script(reply(), HELLO + BEAT, PAUSE + END)
    reader = feed(script)
    assert names(script, reader) == ["hello", "pause", "shutdown"]
    assert reader.last_id == "x-6"
    assert script.run(reader.next()) is None
    assert "last-event-id" not in script.opened[0].headers


def test_a_broken_connection_is_resumed_after_the_last_event() -> None:
    script = Script(reply(), HELLO + PAUSE[:9], LOST, NEVER_SENT, reply(), PAUSE, b"", reply(), END)
    reader = feed(script, after="0")
    assert names(script, reader) == ["hello", "pause", "shutdown"]
    assert [opened.headers["last-event-id"] for opened in script.opened] == [
        "0",
        "x-4",
        "x-4",
        "x-5",
    ]
    assert script.closed >= 2


def test_a_server_that_stays_away_is_an_error() -> None:
    script = Script(*[NEVER_SENT] * 13)
    error = raised(NoAnswer, lambda: script.run(feed(script).next()))
    assert "/hotswap/v1/events was not answered within 5 s" in str(error)


def test_a_full_house_is_tried_again_and_a_refusal_is_not() -> None:
    full = reply(429, {"error": {"code": "overloaded", "message": "64 read", "retryable": True}})
    script = Script(full, reply(), END)
    assert names(script, feed(script)) == ["shutdown"]
    script = Script(*[full] * 13)
    assert "64 read" in str(raised(QueueFull, lambda: script.run(feed(script).next())))
    script = Script(reply(401, {"error": "Unauthorized"}))
    assert "Unauthorized" in str(raised(RequestRefused, lambda: script.run(feed(script).next())))


def test_sglang_has_no_events() -> None:
    script = Script(kind=ServerKind.SGLANG)
    assert "has no events" in str(raised(RequestRefused, lambda: script.run(feed(script).next())))


def test_ids_are_told_in_the_repr() -> None:
    assert repr(feed(Script(), after="x-1")) == "<Feed of http://server after x-1>"
