from collections.abc import Callable
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import ClientGone, ShuttingDown
from hotswap.http.generation import Generate
from hotswap.http.openai.completions import completions
from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine


class Client:
    """An ASGI ``receive`` whose client goes away when told."""

    def __init__(self) -> None:
        self.gone = anyio.Event()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_work_of_a_client_that_stays() -> None:
    async def work() -> int:
        return 7

    assert await until_disconnect(Client().receive, work) == 7


async def test_an_error_comes_out_as_it_was() -> None:
    async def work() -> int:
        raise KeyError("name")

    with pytest.raises(KeyError, match="name"):
        await until_disconnect(Client().receive, work)


async def test_work_is_cancelled_when_the_client_goes() -> None:
    client = Client()
    cancelled = anyio.Event()

    async def work() -> None:
        client.gone.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    with pytest.raises(ClientGone):
        await until_disconnect(client.receive, work)
    assert cancelled.is_set()


async def test_shielded_work_ends_and_its_result_counts() -> None:
    client = Client()
    ended = anyio.Event()

    async def work() -> str:
        with anyio.CancelScope(shield=True):
            client.gone.set()
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            ended.set()
        return "committed"

    assert await until_disconnect(client.receive, work) == "committed"
    assert ended.is_set()


async def test_what_ends_the_wait_for_a_body_comes_out_as_it_was() -> None:
    async def receive() -> Message:
        raise ShuttingDown("down")

    async def work() -> None:
        await anyio.sleep_forever()

    async def shielded() -> str:
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
        return "committed"

    with pytest.raises(ShuttingDown, match="down"):
        await until_disconnect(receive, work)
    assert await until_disconnect(receive, shielded) == "committed"


async def test_other_messages_are_no_disconnect() -> None:
    finish = anyio.Event()
    messages: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        finish.set()
        await anyio.sleep_forever()
        raise AssertionError("never reached")

    async def work() -> str:
        await finish.wait()
        return "done"

    assert await until_disconnect(receive, work) == "done"


async def test_a_client_that_leaves_while_it_sends_starts_nothing(serving: Any) -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b'{"mode": ', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/pause_generation", "headers": []}
    await serving.app({**scope, "query_string": b""}, receive, send)

    assert sent == []
    assert serving.commands.calls == []


async def test_a_reply_that_breaks_off_breaks_the_connection(serving: Any) -> None:
    """Once a reply has begun, an error can only be shown by ending it badly."""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise OSError("connection lost")

    scope = {"type": "http", "method": "GET", "path": "/health", "headers": []}
    with pytest.raises(OSError, match="connection lost"):
        await serving.app({**scope, "query_string": b""}, receive, send)


@pytest.mark.parametrize(
    ("method", "path", "body", "command"),
    [
        ("POST", "/pause_generation", None, "pause abort"),
        ("POST", "/continue_generation", None, "resume"),
        ("GET", "/flush_cache", None, "flush"),
        ("POST", "/update_weights_from_disk", {"model_path": "/b"}, "update"),
    ],
)
async def test_a_disconnect_cancels_the_command(
    serving: Any, method: str, path: str, body: object, command: str
) -> None:
    serving.commands.gate = anyio.Event()
    async with AsgiCall(serving.app, method, path, body) as call:
        await serving.commands.started.wait()
        call.disconnect()
        sent = await call.finished()

    assert serving.commands.cancelled == [command]
    assert sent == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_aborts_the_generation(serve: Callable[..., Any], stream: bool) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    body = {"text": "a", "rid": "r", "stream": stream}
    async with AsgiCall(serving.app, "POST", "/generate", body) as call:
        await serving.engine.submitted.wait()
        generation = serving.engine.generations["r"]
        generation.emit(b"some")
        call.disconnect()
        await call.finished()

    assert generation.aborted.is_set()
    assert len(serving.app.state.served.requests) == 0


async def test_an_id_is_free_at_once_after_a_disconnect(serve: Callable[..., Any]) -> None:
    """The engine lets go of an aborted request later than the client comes back."""
    serving = serve(engine=ScriptedEngine(reply=None))
    body = {"text": "a", "rid": "r"}
    for _ in range(3):
        serving.engine.submitted = anyio.Event()
        async with AsgiCall(serving.app, "POST", "/generate", body) as call:
            await serving.engine.submitted.wait()
            call.disconnect()
            await call.finished()
        assert not serving.engine.generations["r"].ended

    serving.engine.reply = b"ok"
    status, reply = await serving.json("POST", "/generate", json=body)
    assert (status, reply["meta_info"]["id"]) == (200, "r")


async def test_a_disconnect_at_a_closed_door_leaves_nothing(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    door = serving.commands.admission.door = anyio.Event()
    async with AsgiCall(serving.app, "POST", "/generate", {"text": "a", "rid": "r"}) as call:
        while not serving.commands.admission.entering:
            await anyio.lowlevel.checkpoint()
        call.disconnect()
        await call.finished()
    door.set()

    assert serving.commands.admission.entering == 0
    assert serving.engine.generations == {}
    assert len(serving.app.state.served.requests) == 0


async def test_a_request_that_ended_is_not_aborted(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine())
    await serving.json("POST", "/generate", json={"text": "a", "rid": "r"})

    assert not serving.engine.generations["r"].aborted.is_set()


async def test_a_request_held_over_a_shutdown_is_not_submitted(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine())
    door = serving.commands.admission.door = anyio.Event()
    async with AsgiCall(serving.app, "POST", "/generate", {"text": "a"}) as call:
        while not serving.commands.admission.entering:
            await anyio.lowlevel.checkpoint()
        serving.app.state.served.requests.close()
        door.set()
        start, _ = await call.finished()

    assert start["status"] == 503
    assert serving.engine.generations == {}


@pytest.mark.parametrize("text", ["a", ["a", "b"]])
@pytest.mark.parametrize(
    ("path", "endpoint", "field"),
    [("/generate", Generate(), "text"), ("/v1/completions", completions, "prompt")],
)
async def test_a_client_that_reads_nothing_counts_as_gone(
    serving: Any, path: str, endpoint: Any, field: str, text: object
) -> None:
    inner = Starlette(routes=[Route(path, endpoint, methods=["POST"])])
    inner.state.served = serving.app.state.served
    inner.state.openai = serving.app.state.openai
    serving.app.state.served.stall_s = 0.01
    serving.engine.reply = None

    async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
        async def never_read(message: Message) -> None:
            if message["type"] == "http.response.body":
                await anyio.sleep_forever()

        await inner(scope, receive, never_read)

    body = {field: text, "rid": "r", "stream": True}
    async with AsgiCall(deaf, "POST", path, body) as call:
        await serving.engine.submitted.wait()
        generations = list(serving.engine.generations.values())
        generations[0].emit(b"x")
        with pytest.raises(ClientGone):
            await call.finished()

    assert all(one.aborted.is_set() for one in generations)
    assert len(serving.app.state.served.requests) == 0
