"""A connection is kept only behind a request that was read whole."""

from __future__ import annotations

import pytest
from starlette.types import Message, Receive, Scope, Send

from hotswap.http.unread import CloseUnread

LENGTH, CHUNKED = (b"content-length", b"2"), (b"Transfer-Encoding", b"chunked")


async def told(
    *headers: tuple[bytes, bytes], reads: int, parts: int = 1, version: str = "1.1"
) -> bool:
    """Whether an app that reads ``reads`` of ``parts`` parts says that the connection ends."""
    sent: list[Message] = []
    left = list(range(parts))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(reads):
            await receive()
        await send({"type": "http.response.start", "status": 401, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Message:
        left.pop()
        return {"type": "http.request", "body": b"{}", "more_body": bool(left)}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "http_version": version, "headers": list(headers)}
    await CloseUnread(app)(scope, receive, send)
    start, body = sent
    assert body == {"type": "http.response.body", "body": b""}
    assert start["headers"][0] == (b"x", b"y")
    return (b"connection", b"close") in start["headers"]


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


async def test_later_versions_need_no_such_word() -> None:
    assert not await told(LENGTH, reads=0, version="2")
