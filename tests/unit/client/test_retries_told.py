"""Nobody waits without a word, and no word has a key in it."""

from __future__ import annotations

import logging
import traceback

import httpx
import pytest

from hotswap.client import (
    AsyncClient,
    Client,
    NoAnswer,
    RequestRefused,
    WeightsAfter,
    commands,
    weights_after,
)
from hotswap.client.effects import NoReply, OpenStream
from hotswap.client.session import Session
from hotswap.client.updating import UpdateRequest, update
from tests.unit.client.script import NEVER_SENT, Script, raised, reply, status

KEY = "s3cret"
BUSY = reply(409, {"error": {"code": "busy", "message": "another", "retryable": True}})
WRONG = NoReply("LocalProtocolError: no", sent=False, final=True)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the client logs."""
    caplog.set_level(logging.WARNING, logger="hotswap.client")
    return caplog


def test_the_first_retry_is_told_and_then_one_in_half_a_minute(
    told: pytest.LogCaptureFixture,
) -> None:
    script = Script(*[NEVER_SENT] * 125, reply(200))
    script.run(commands.resume(script.session, budget=script.budget(100.0)))
    assert sum(script.slept) == 62.5
    assert [(record.name, record.levelname) for record in told.records] == [
        ("hotswap.client", "WARNING")
    ] * 3
    seen = "http://server/continue_generation: ConnectError: refused; asking again, for up to"
    assert told.messages == [f"{seen} {seconds} s" for seconds in (100, 70, 40)]


def test_a_server_that_is_busy_is_told_of(told: pytest.LogCaptureFixture) -> None:
    script = Script(BUSY, BUSY, reply(200))
    script.run(commands.resume(script.session, budget=script.budget()))
    (message,) = told.messages
    assert message.startswith("http://server/continue_generation: the server answered 409: another")


def test_a_short_call_is_told_of_by_its_error(told: pytest.LogCaptureFixture) -> None:
    script = Script(*[NEVER_SENT] * 7)
    steps = commands.resume(script.session, budget=script.budget(2.0))
    error = raised(NoAnswer, lambda: script.run(steps))
    assert "not answered within 2 s" in str(error)
    assert told.messages == []


def test_an_update_that_is_sent_again_is_told_of(told: pytest.LogCaptureFixture) -> None:
    done = reply(200, {"success": True})
    script = Script(status(), NEVER_SENT, BUSY, done)
    script.run(update(script.session, UpdateRequest(source="b"), budget=script.budget()))
    (line,) = told.messages
    assert line == (
        f"update of http://server from b: sent 1 times and not done: {NEVER_SENT}; asking again, "
        "for up to 600 s"
    )


# --- requests that HTTP does not allow


def test_what_cannot_be_sent_is_not_sent_again(told: pytest.LogCaptureFixture) -> None:
    script = Script(WRONG)
    steps = commands.resume(script.session, budget=script.budget())
    error = raised(RequestRefused, lambda: script.run(steps))
    assert isinstance(error, RequestRefused)
    assert (error.status, str(error)) == (
        0,
        "http://server/continue_generation was not sent: LocalProtocolError: no",
    )
    script = Script(status(), WRONG)
    steps_of_update = update(script.session, UpdateRequest(source="b"), budget=script.budget())
    error = raised(RequestRefused, lambda: script.run(steps_of_update))
    assert weights_after(error) is WeightsAfter.UNTOUCHED
    assert script.slept == []
    assert told.messages == []


class Disallowed:
    """Finds a header wrong and repeats it, as h11 does."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        raise httpx.LocalProtocolError(f"Illegal header value b'Bearer {KEY}\\n'", request=request)


def test_what_http_says_of_a_header_is_not_repeated() -> None:
    server = Disallowed()
    with (
        httpx.Client(transport=httpx.MockTransport(server)) as http,
        Client("http://server", http=http) as client,
        pytest.raises(RequestRefused, match="does not allow one of its headers") as caught,
    ):
        client.update("/b")
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert server.asked == 1


async def test_nor_by_the_asynchronous_client() -> None:
    server = Disallowed()
    async with httpx.AsyncClient(transport=httpx.MockTransport(server)) as http:
        client = AsyncClient("http://server", http=http)
        with pytest.raises(RequestRefused, match="does not allow one of its headers") as caught:
            await client.update("/b")
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert server.asked == 1


# --- keys


def test_a_key_is_sent_without_the_white_space_around_it() -> None:
    session = Session("http://x", api_key=f"{KEY}\n", admin_key=" adm1n\r\n")
    assert session.key_headers(admin=False) == {"authorization": f"Bearer {KEY}"}
    assert session.key_headers(admin=True) == {"authorization": "Bearer adm1n"}


@pytest.mark.parametrize(
    "key", [f"{KEY} x", f"{KEY}\nx", f"{KEY}\xe9", f"\x00{KEY}", "", "\n"], ids=ascii
)
def test_a_key_that_no_header_can_have(key: str) -> None:
    for make in (
        lambda: Client("http://server", api_key=key),
        lambda: AsyncClient("http://server", api_key=key),
    ):
        with pytest.raises(ValueError, match=r"^api_key: the key ") as caught:
            make()
        shown = "".join(traceback.format_exception_only(caught.value))
        assert KEY not in shown
        assert caught.value.__suppress_context__
    with pytest.raises(ValueError, match=r"^admin_key: the key "):
        Session("http://server", admin_key=key)


def test_no_repr_shows_a_key() -> None:
    session = Session("http://x", api_key=KEY)
    asked = next(session.ask_once("/status", session.budget(1.0)))
    opened = OpenStream(
        path="/x", timeout_s=1.0, open_s=1.0, headers=session.key_headers(admin=False)
    )
    with Client("http://server", api_key=KEY, admin_key=KEY) as client:
        shown = f"{session!r} {asked!r} {opened!r} {client!r} {client.paused()!r}"
    assert "/status" in shown
    assert KEY not in shown
