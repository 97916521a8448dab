"""Clients that stop in the middle of a request while the server goes down."""

import asyncio
from typing import Any

import anyio
import pytest
from starlette.types import Message, Receive, Scope, Send

from hotswap.http.errors import ShuttingDown
from hotswap.http.half_sent import HalfSent
from hotswap.http.in_flight import InFlightRequests


class HalfAClient:
    """Sends the beginning of a body and then nothing, until it is told to."""

    def __init__(self) -> None:
        self.waiting, self.go_on = anyio.Event(), anyio.Event()
        self.sent: list[Message] = []
        self._begun = False

    async def receive(self) -> Message:
        if not self._begun:
            self._begun = True
            return {"type": "http.request", "body": b'{"mode": "abo', "more_body": True}
        self.waiting.set()
        await self.go_on.wait()
        return {"type": "http.request", "body": b'rt"}', "more_body": False}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


def scope(path: str) -> dict[str, object]:
    headers = [(b"transfer-encoding", b"chunked")]
    found = {"type": "http", "method": "POST", "path": path, "query_string": b""}
    return {
        **found,
        "headers": headers,
        "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.1"},
    }


@pytest.mark.parametrize("path", ["/pause_generation", "/generate", "/update_weights_from_disk"])
async def test_half_a_request_gets_a_503_when_the_server_goes_down(serving: Any, path: str) -> None:
    client = HalfAClient()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serving.app, scope(path), client.receive, client.send)
        await client.waiting.wait()
        serving.app.state.served.requests.close()

    assert client.sent[0]["status"] == 503
    assert b"shutting_down" in client.sent[1]["body"]
    assert serving.commands.calls == []


async def test_a_slow_request_to_a_server_that_stays_up(serving: Any) -> None:
    client = HalfAClient()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serving.app, scope("/pause_generation"), client.receive, client.send)
        await client.waiting.wait()
        client.go_on.set()

    assert client.sent[0]["status"] == 200
    assert serving.commands.calls == ["pause abort"]


async def test_a_request_without_a_body_is_answered_by_a_server_that_goes_down(
    serving: Any,
) -> None:
    """Its one message may come a moment later than its head."""
    serving.app.state.served.requests.close()
    client = HalfAClient()

    async def receive() -> Message:
        await anyio.lowlevel.checkpoint()
        return {"type": "http.request", "body": b"", "more_body": False}

    asked = {**scope("/requests"), "method": "GET", "headers": []}
    await serving.app(asked, receive, client.send)
    assert client.sent[0]["status"] == 200


async def read_whole(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive())["more_body"]:
        pass


async def not_sent(message: Message) -> None:
    pytest.fail(f"nobody replies: {message}")


async def test_a_body_in_many_pieces_takes_no_task_for_each() -> None:
    pieces, made = iter([*[True] * 100, False]), list[str]()

    async def receive() -> Message:
        await anyio.lowlevel.checkpoint()
        return {"type": "http.request", "body": b"x", "more_body": next(pieces)}

    def note(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(repr(work))
        return asyncio.Task(work, loop=loop, **options)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(note)
    try:
        await HalfSent(read_whole, requests=InFlightRequests())(scope("/"), receive, not_sent)
    finally:
        loop.set_task_factory(None)
    assert next(pieces, None) is None
    assert made == []


async def test_a_server_that_has_gone_down_waits_for_no_body_that_comes_later() -> None:
    client, requests = HalfAClient(), InFlightRequests()
    requests.close()
    with pytest.raises(ShuttingDown):
        await HalfSent(read_whole, requests=requests)(scope("/"), client.receive, not_sent)
    assert client.waiting.is_set()
    assert repr(requests) == "<InFlightRequests 0 closed>"


async def test_a_body_that_takes_too_long_is_not_a_server_that_goes_down() -> None:
    async def receive() -> Message:
        raise TimeoutError("the client's own")

    app = HalfSent(read_whole, requests=InFlightRequests())
    with pytest.raises(TimeoutError, match="the client's own"):
        await app(scope("/"), receive, not_sent)
