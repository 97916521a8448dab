"""``within_s`` bounds a call whatever comes over the wire, and what comes broken is typed."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
import torch

from hotswap.client import (
    AsyncClient,
    Client,
    NoAnswer,
    OutcomeUnknown,
    ReplyMalformed,
    RequestRefused,
    StillPaused,
    Transport,
)
from hotswap.client.bounded import BoundedTransport
from hotswap.errors import UpdateRejected
from tests.unit.answering import answering
from tests.unit.client.fake_sglang import FakeSglang
from tests.unit.client.script import status
from tests.unit.client.slow_wire import dripping

HEADERS = b"HTTP/1.1 200 OK\r\nx-slow: "
BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n"
CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nFFFFF\r\n"
INFORMATIVE = b"HTTP/1.1 102 Processing\r\nx-slow: "
HEADS = {"head": HEADERS, "102": INFORMATIVE, "line": b""}
BODIES = {"body": BODY, "chunk": CHUNKS}
SLOW = pytest.mark.parametrize("slow", [*HEADS, *BODIES])
# Events are a body that has no end.
SLOW_HEAD = pytest.mark.parametrize("slow", HEADS)
# A server that drips for ever: that the call ends at all is what is tested.
WITHIN_S = 0.4


def dripped(slow: str) -> AbstractContextManager[str]:
    return dripping({**HEADS, **BODIES}[slow])


@SLOW
def test_a_blocking_call_ends(slow: str) -> None:
    with (
        dripped(slow) as url,
        Client(url, server="hotswap") as client,
        pytest.raises(NoAnswer, match=r"within 0\.4 s"),
    ):
        client.state(within_s=WITHIN_S)


@SLOW_HEAD
def test_blocking_events_that_do_not_begin_end(slow: str) -> None:
    with (
        dripped(slow) as url,
        Client(url, server="hotswap") as client,
        client.events(reconnect_s=WITHIN_S) as events,
        pytest.raises(NoAnswer, match=r"within 0\.4 s"),
    ):
        next(events)


@SLOW
async def test_an_asynchronous_one_does_too(slow: str) -> None:
    with dripped(slow) as url:
        async with AsyncClient(url, server="hotswap") as client:
            with pytest.raises(NoAnswer, match=r"within 0\.4 s"):
                await client.state(within_s=WITHIN_S)


@SLOW_HEAD
async def test_asynchronous_events_that_do_not_begin_end(slow: str) -> None:
    with dripped(slow) as url:
        client = AsyncClient(url, server="hotswap")
        async with client, client.events(reconnect_s=WITHIN_S) as events:
            with pytest.raises(NoAnswer, match=r"within 0\.4 s"):
                await anext(events)


def test_an_http_client_of_the_callers_own_ends_at_a_piece() -> None:
    with (
        dripping(BODY) as url,
        httpx.Client() as http,
        Client(url, server="hotswap", http=http) as client,
        pytest.raises(NoAnswer, match="ReadTimeout"),
    ):
        client.state(within_s=WITHIN_S)


SHOWN = status().body
LOOK = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(SHOWN), SHOWN)
LONG = {"a": torch.zeros(16 * 2**20, dtype=torch.uint8)}


def test_a_push_to_who_hardly_reads_ends() -> None:
    with (
        dripping(LOOK, reads=False) as url,
        Client(url, server="hotswap") as client,
        pytest.raises(OutcomeUnknown, match="Write"),
    ):
        client.push(LONG, transport=Transport.BODY, within_s=2)


async def test_an_asynchronous_push_to_who_hardly_reads_ends() -> None:
    with dripping(LOOK, reads=False) as url:
        async with AsyncClient(url, server="hotswap") as client:
            with pytest.raises(OutcomeUnknown):
                await client.push(LONG, transport=Transport.BODY, within_s=2)


@pytest.mark.parametrize("seconds", [math.inf, 1e10, 1e300])
@pytest.mark.parametrize("way", ["blocking", "asynchronous"])
async def test_any_length_of_time_will_do(way: str, seconds: float) -> None:
    with answering(lambda _: (200, {}, status().body)) as url:
        if way == "blocking":
            with Client(url) as client:
                assert client.state(within_s=seconds).ready
        async with AsyncClient(url) as other:
            assert (await other.state(within_s=seconds)).ready


def test_no_time_at_all_is_named() -> None:
    with Client("http://server") as client:
        with pytest.raises(ValueError, match="reconnect_s is nan"):
            client.events(reconnect_s=math.nan)
        with pytest.raises(ValueError, match="within_s is -1"):
            client.resume(within_s=-1)


def test_nobody_at_the_address() -> None:
    transport = BoundedTransport(tls=False)
    assert repr(transport).startswith("<BoundedTransport ")
    with httpx.Client(transport=transport) as http, pytest.raises(httpx.ConnectError):
        http.get("http://127.0.0.1:1")


def test_who_speaks_no_tls_is_no_answer() -> None:
    with answering(lambda _: (200, {}, b"")) as url:
        address = url.replace("http:", "https:")
        with (
            Client(address, server="hotswap") as client,
            pytest.raises(NoAnswer, match="Connect"),
        ):
            client.state(within_s=WITHIN_S)


# --- what comes broken


def broken(fake: FakeSglang, path: str) -> Callable[[httpx.Request], httpx.Response]:
    """``fake``, whose replies of ``path`` say that they are gzip and are not."""

    def meets(request: httpx.Request) -> httpx.Response:
        answer = fake(request)
        if request.url.path != path:
            return answer
        headers = {"content-encoding": "gzip"}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(b"not gzip"))

    return meets


async def called(way: str, server: Any, call: str, *arguments: Any, **options: Any) -> None:
    """``call`` of a client of an SGLang server, in a pause where it is ``paused``."""
    transport = httpx.MockTransport(server)
    if way == "blocking":
        http = httpx.Client(transport=transport)
        with Client("http://server", http=http, server="sglang") as client:
            if call != "paused":
                getattr(client, call)(*arguments, **options)
                return
            with client.paused(**options):
                pass
        return
    other = httpx.AsyncClient(transport=transport)
    async with AsyncClient("http://server", http=other, server="sglang") as client:
        if call != "paused":
            await getattr(client, call)(*arguments, **options)
            return
        async with client.paused(**options):
            pass


@pytest.mark.parametrize("way", ["blocking", "asynchronous"])
@pytest.mark.parametrize(
    ("path", "call", "error"),
    [
        ("/pause_generation", "pause", NoAnswer),
        ("/continue_generation", "resume", NoAnswer),
        ("/flush_cache", "flush", NoAnswer),
        ("/model_info", "state", NoAnswer),
        ("/health", "wait_ready", NoAnswer),
        ("/pause_generation", "paused", NoAnswer),
        ("/continue_generation", "paused", StillPaused),
    ],
)
async def test_a_body_that_cannot_be_decoded_is_no_answer(
    way: str, path: str, call: str, error: type[Exception]
) -> None:
    server = FakeSglang()
    # Its time may be over before it is decoded.
    with pytest.raises(error, match=r"DecodingError|ReadTimeout"):
        await called(way, broken(server, path), call, within_s=0.3)
    if call == "paused":
        assert server.calls[-1] == "/continue_generation"
        assert not server.paused


@pytest.mark.parametrize("way", ["blocking", "asynchronous"])
async def test_an_update_whose_reply_cannot_be_decoded_is_unknown_or_found_out(way: str) -> None:
    server = FakeSglang()
    meets = broken(server, "/update_weights_from_disk")
    await called(way, meets, "update", "/b", version="7")
    assert server.version == "7"
    with pytest.raises(OutcomeUnknown, match="DecodingError"):
        await called(way, meets, "update", "/b")
    assert not server.paused


def circles(request: httpx.Request) -> httpx.Response:
    return httpx.Response(307, headers={"location": str(request.url)})


async def test_an_http_client_that_would_follow_is_sent_nowhere() -> None:
    transport = httpx.MockTransport(circles)
    http = httpx.Client(transport=transport, follow_redirects=True)
    with pytest.raises(RequestRefused, match="which is not followed"):
        Client("http://server", http=http).state(within_s=0.3)
    other = httpx.AsyncClient(transport=transport, follow_redirects=True)
    with pytest.raises(RequestRefused, match="which is not followed"):
        await AsyncClient("http://server", http=other).state(within_s=0.3)


# --- events


def stream(*events: bytes, kind: str = "text/event-stream") -> Callable[..., httpx.Response]:
    return lambda _: httpx.Response(200, headers={"content-type": kind}, content=b"".join(events))


def listening(server: FakeSglang, **options: Any) -> list[str | None]:
    http = httpx.Client(transport=httpx.MockTransport(server))
    with (
        Client("http://server", http=http, server="hotswap") as client,
        client.events(**options) as events,
    ):
        return [event.id for event in events]


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/json", ""])
def test_what_is_no_stream_of_events_is_not_read_for_ever(kind: str) -> None:
    server = FakeSglang()
    server.meets["/hotswap/v1/events"] = stream(b"<html>hi</html>", kind=kind)
    with pytest.raises(ReplyMalformed, match="wanted text/event-stream"):
        listening(server)
    assert server.calls == ["/hotswap/v1/events"]


def test_streams_that_end_before_they_tell_anything_are_a_server_that_is_away() -> None:
    server = FakeSglang()
    server.meets["/hotswap/v1/events"] = stream()
    with pytest.raises(NoAnswer, match="it ended, and had nothing to tell"):
        listening(server, reconnect_s=0.3)


def test_an_id_in_any_script_is_sent_as_it_came() -> None:
    asked: list[bytes] = []

    def meets(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.headers.raw).get(b"last-event-id", b""))
        end = b"event: shutdown\ndata: {}\n\n" if len(asked) == 2 else b""
        return stream("id: é€\nevent: a\ndata: {}\n\n".encode(), end)(request)

    server = FakeSglang()
    server.meets["/hotswap/v1/events"] = meets
    assert listening(server, after="ü") == ["é€", "é€", None]
    assert asked == ["ü".encode(), "é€".encode()]
    with pytest.raises(RequestRefused, match="was not sent"):
        listening(server, after="\udcff")


def test_an_event_without_an_end_is_typed() -> None:
    server = FakeSglang()
    server.meets["/hotswap/v1/events"] = stream(b"data: " + b"x" * (2**24 + 1))
    with pytest.raises(ReplyMalformed, match="characters and no end"):
        listening(server)


# --- addresses


@pytest.mark.parametrize(
    "url",
    [
        *("http://[::1", "http://", "http://:80", "http://a:99999", "http://a:x", "http://a:0"),
        *("ftp://a", "a:30000", "", "http://a/?b", "http://a/#b", "http://a\x00b", "http://\x1b"),
        *(f"http://{'a' * 64}", "http://a..b"),
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match=r"wanted one like http://127\.0\.0\.1:30000"):
        Client(url)
    with pytest.raises(ValueError, match=r"wanted one like http://127\.0\.0\.1:30000"):
        AsyncClient(url)


def test_the_password_of_an_address_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="the address is 'http://") as caught:
        Client("http://user:s3cret@a:99999")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://[::1]:30000/", "https://a/prefix/", "HTTP://a"])
def test_addresses_that_are(url: str) -> None:
    assert Client(url).url == url.rstrip("/")


# --- fences of several tasks


async def test_fences_that_overlap_are_left_by_who_entered_them() -> None:
    server = FakeSglang()
    http = httpx.AsyncClient(transport=httpx.MockTransport(server))
    async with AsyncClient("http://server", http=http, server="sglang") as client:
        frozen, aborted = client.paused("in_place"), client.paused("abort")
        await frozen.__aenter__()
        await aborted.__aenter__()
        await frozen.__aexit__(None, None, None)
        assert server.paused
        # By abort nothing holds keys and values any more: it flushes.
        await client.update("/b", version="7")
        await aborted.__aexit__(None, None, None)
    assert server.calls.count("/flush_cache") == 1
    assert server.bodies[-1]["flush_cache"] is True
    assert not server.paused


def test_one_fence_may_be_entered_twice() -> None:
    server = FakeSglang()
    http = httpx.Client(transport=httpx.MockTransport(server))
    with Client("http://server", http=http, server="sglang") as client:
        paused = client.paused("abort")
        with paused, paused:
            pass
        assert client._session.fences == []
    assert server.calls.count("/continue_generation") == 1


def test_what_json_cannot_have_is_refused_before_anything_is_asked() -> None:
    server = FakeSglang()
    http = httpx.Client(transport=httpx.MockTransport(server))
    with Client("http://server", http=http) as client:
        for wrong in ({"token_step": math.nan}, {"version": "\udcff"}, {"flush_times": 0}):
            with pytest.raises((ValueError, TypeError)):
                client.update("/b", fenced=True, **wrong)
        with pytest.raises(ValueError, match="no JSON can have"):
            client.update("/b\udcff")
        with pytest.raises(UpdateRejected, match="'npz'"):
            client.update("/b", strategy="npz")
    assert server.calls == ["/status"]
