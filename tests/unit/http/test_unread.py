"""A connection is kept only behind a request that was read whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
from starlette.types import Message, Receive, Scope, Send

from hotswap.http import unread
from hotswap.http.in_flight import InFlightRequests
from hotswap.http.unread import CloseUnread

LENGTH, CHUNKED = (b"content-length", b"2"), (b"Transfer-Encoding", b"chunked")
MEGABYTE = b"x" * 1_000_000


class Exchange:
    """One request through the middleware, to an app that reads ``reads`` messages of it."""

    def __init__(self, receive: Callable[[], Awaitable[Message]], *, reads: int = 0) -> None:
        self._receive = receive
        self._reads = reads
        self.requests = InFlightRequests()
        self.sent: list[Message] = []

    async def run(self, *headers: tuple[bytes, bytes], version: str = "1.1") -> None:
        scope = {"type": "http", "http_version": version, "headers": list(headers)}
        await CloseUnread(self._app, requests=self.requests)(scope, self._receive, self._send)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(self._reads):
            await receive()
        await send({"type": "http.response.start", "status": 401, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": b"no", "more_body": True})
        await send({"type": "http.response.body", "body": b"!"})

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def parts_of(count: int) -> tuple[list[int], Callable[[], Awaitable[Message]]]:
    """A body of ``count`` messages, and those that have not been taken."""
    left = list(range(count))

    async def receive() -> Message:
        left.pop()
        return {"type": "http.request", "body": b"{}", "more_body": bool(left)}

    return left, receive


async def told(
    *headers: tuple[bytes, bytes], reads: int, parts: int = 1, version: str = "1.1"
) -> bool:
    """Whether an app that reads ``reads`` of ``parts`` parts says that the connection ends."""
    left, receive = parts_of(parts)
    exchange = Exchange(receive, reads=reads)
    await exchange.run(*headers, version=version)
    start, *_, last = exchange.sent
    assert exchange.body == b"no!"
    assert not last.get("more_body", False)
    assert start["headers"][0] == (b"x", b"y")
    is_told = (b"connection", b"close") in start["headers"]
    # What the app has left is swallowed, behind the whole reply; what was read whole is not
    # asked for again, and neither is what a request of the first version has not got.
    has_more = reads < parts and (headers[:1] in ((LENGTH,), (CHUNKED,)) or version != "1.1")
    assert is_told is (has_more and version == "1.1")
    assert left == ([] if has_more else list(range(parts - reads)))
    return is_told


@pytest.mark.parametrize("header", [LENGTH, CHUNKED])
async def test_a_body_that_was_not_read_ends_the_connection(header: tuple[bytes, bytes]) -> None:
    assert await told(header, reads=0)
    assert await told(header, reads=1, parts=2)


@pytest.mark.parametrize("header", [LENGTH, CHUNKED])
async def test_one_that_was_read_does_not(header: tuple[bytes, bytes]) -> None:
    assert not await told(header, reads=1)
    assert not await told(header, reads=2, parts=2)


async def test_nor_does_a_request_without_one() -> None:
    assert not await told(reads=0)
    assert not await told((b"content-length", b"0"), reads=0)


@pytest.mark.parametrize("headers", [(LENGTH,), ()])
async def test_later_versions_need_no_such_word(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    assert not await told(*headers, reads=0, version="2")
    assert not await told(*headers, reads=1, parts=3, version="2")
    assert not await told(*headers, reads=2, parts=2, version="2")


async def test_the_reply_is_whole_before_the_rest_is_swallowed() -> None:
    async def receive() -> Message:
        seen.append(exchange.body)
        return {"type": "http.request", "body": b"{}", "more_body": len(seen) < 3}

    seen: list[bytes] = []
    exchange = Exchange(receive)
    await exchange.run(LENGTH)
    assert seen == [b"no!"] * 3
    assert [message.get("more_body", False) for message in exchange.sent[1:]] == [True, True, False]


async def test_a_client_that_never_stops_is_not_listened_to_for_ever() -> None:
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        taken += 1
        await anyio.lowlevel.checkpoint()
        return {"type": "http.request", "body": MEGABYTE, "more_body": True}

    await Exchange(receive).run(LENGTH)
    assert 64 <= taken <= 70


async def test_nor_is_one_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError("nobody sends anything")

    monkeypatch.setattr(unread, "_SILENCE_S", 0.01)
    exchange = Exchange(receive)
    await exchange.run(LENGTH)
    assert exchange.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_client_that_is_gone_is_not_waited_for() -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    exchange = Exchange(receive)
    await exchange.run(LENGTH)
    assert exchange.body == b"no!"


async def test_a_server_that_goes_down_waits_for_nobody() -> None:
    async def receive() -> Message:
        raise AssertionError("nothing may be read")

    exchange = Exchange(receive)
    exchange.requests.close()
    await exchange.run(LENGTH)
    assert exchange.body == b"no!"
