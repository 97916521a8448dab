"""Both clients on a wire: they run the same steps, and clean up however they are stopped."""

from __future__ import annotations

import asyncio

import anyio
import httpx
import pytest

from hotswap.client import (
    AsyncClient,
    Client,
    NoAnswer,
    RequestRefused,
    ServerKind,
    StillPaused,
    WeightsAfter,
    weights_after,
)
from hotswap.errors import UpdateFailed, UpdateRejected
from tests.unit.client.fake_sglang import FakeSglang

FENCED = ["/pause_generation", "/flush_cache", "/update_weights_from_disk", "/continue_generation"]
HELLO = b'id: x-1\nevent: hello\ndata: {"state":"serving"}\n\nevent: shutdown\ndata: {}\n\n'


def blocking(fake: FakeSglang, server: str | None = None) -> Client:
    http = httpx.Client(transport=httpx.MockTransport(fake))
    return Client("http://server/", http=http, server=server)


def asynchronous(fake: FakeSglang, server: str | None = None) -> AsyncClient:
    http = httpx.AsyncClient(transport=httpx.MockTransport(fake))
    return AsyncClient("http://server/", http=http, server=server)


def commands_of(server: FakeSglang) -> list[str]:
    return [path for path in server.calls if path in FENCED]


def test_a_blocking_client_updates_an_sglang_server_behind_a_fence() -> None:
    server = FakeSglang(refuse_flushes=2)
    with blocking(server) as client:
        result = client.update("/b", version=7, flush_every_s=0.01)
        seen = client.state()
    assert commands_of(server) == [FENCED[0], FENCED[1], FENCED[1], FENCED[1], *FENCED[2:]]
    assert server.bodies[0] == {"mode": "abort"}
    assert (result.weight_version, seen.weight_version, seen.model_path) == ("7", "7", "/b")
    assert seen.server is ServerKind.SGLANG
    assert not server.paused


async def test_an_asynchronous_one_does_the_same() -> None:
    server = FakeSglang(refuse_flushes=2)
    async with asynchronous(server) as client:
        result = await client.update("/b", version=7, flush_every_s=0.01)
        seen = await client.state()
        await client.wait_ready()
    assert commands_of(server) == [FENCED[0], FENCED[1], FENCED[1], FENCED[1], *FENCED[2:]]
    assert (result.weight_version, seen.weight_version) == ("7", "7")
    assert not server.paused


def test_inside_a_fence_of_the_caller_an_update_is_none_of_its_own() -> None:
    server = FakeSglang()
    with blocking(server, server="sglang") as client, client.paused("retract"):
        client.update("/b", version="7")
        client.update("/c", version="8")
        assert server.paused
    assert commands_of(server) == [FENCED[0], *FENCED[1:3] * 2, FENCED[3]]
    assert "/status" not in server.calls


def test_what_an_sglang_server_tells_and_what_it_does_not() -> None:
    server = FakeSglang()
    with blocking(server) as client:
        client.wait_ready()
        seen = client.state()
        with pytest.raises(RequestRefused, match="no events"), client.events() as events:
            next(events)
    assert (seen.running, seen.waiting, seen.weight_version) == (2, 4, "default")
    assert (seen.state, seen.weight_epoch, seen.updates, seen.ready) == (None, None, (), True)


def test_an_update_without_a_label_keeps_that_of_the_server() -> None:
    server = FakeSglang()
    with blocking(server) as client:
        result = client.update("/b", token_step=3)
    assert (result.weight_version, result.num_paused_requests) == (None, 0)
    assert (server.version, server.model_path) == ("default", "/b")
    assert server.bodies[-1] == {"model_path": "/b", "flush_cache": True, "token_step": 3}


def test_a_mode_that_sglang_does_not_have_is_refused_and_nothing_is_continued() -> None:
    server = FakeSglang()
    with blocking(server) as client, pytest.raises(RequestRefused, match="Input should be"):
        client.update("/b", pause_mode="wait")
    assert commands_of(server) == ["/pause_generation"]


def test_a_second_interrupt_while_it_continues_does_not_leave_it_paused() -> None:
    server = FakeSglang()
    asked: list[str] = []

    def impatient(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if len(asked) == 1:
            raise KeyboardInterrupt
        server.paused = False
        return httpx.Response(200, json={"status": "ok"})

    server.meets["/continue_generation"] = impatient
    with blocking(server, server="sglang") as client:
        with pytest.raises(KeyboardInterrupt), client.paused():
            raise KeyboardInterrupt
        assert not server.paused
        # Nothing of it is left: the next one pauses and continues as ever.
        with client.paused():
            assert server.paused
    assert not server.paused
    assert len(asked) == 3


def test_a_failed_update_leaves_nothing_paused() -> None:
    server = FakeSglang()
    words = "Failed to update weights: x.\nRolling back to original weights."
    server.meets["/update_weights_from_disk"] = lambda _: httpx.Response(
        400, json={"success": False, "message": words}
    )
    with blocking(server) as client, pytest.raises(UpdateFailed) as caught:
        client.update("/b", version="7")
    assert weights_after(caught.value) is WeightsAfter.NOT_WHOLE
    assert not server.paused


def lost(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("no answer", request=request)


def refused(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def test_a_pause_without_an_answer_is_continued() -> None:
    server = FakeSglang()

    def paused_and_lost(request: httpx.Request) -> httpx.Response:
        server.paused = True
        return lost(request)

    server.meets["/pause_generation"] = paused_and_lost
    with (
        blocking(server, server="sglang") as client,
        pytest.raises(NoAnswer),
        client.paused(within_s=0.4),
    ):
        raise AssertionError("the body ran")
    assert not server.paused
    assert server.calls[-1] == "/continue_generation"


async def test_a_pause_without_an_answer_is_continued_asynchronously() -> None:
    server = FakeSglang()
    server.meets["/pause_generation"] = lost
    async with asynchronous(server, server="sglang") as client:
        with pytest.raises(NoAnswer, match="ReadTimeout"):
            async with client.paused(within_s=0.4):
                raise AssertionError("the body ran")
    assert set(server.calls[:-1]) == {"/pause_generation"}
    assert server.calls[-1] == "/continue_generation"


def test_a_server_that_cannot_be_continued_is_reported() -> None:
    server = FakeSglang()
    server.meets["/continue_generation"] = refused
    with (
        blocking(server, server="sglang") as client,
        pytest.raises(StillPaused, match="still paused"),
        client.paused(within_s=0.4),
    ):
        assert server.paused
    with (
        blocking(server, server="sglang") as client,
        pytest.raises(UpdateRejected) as caught,
        client.paused(within_s=0.4),
    ):
        raise UpdateRejected("wrong")
    assert "still paused" in caught.value.__notes__[0]


class Gate:
    """A server that answers one path only once it is told to."""

    def __init__(self, server: FakeSglang, path: str) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self._server = server
        self._path = path

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        answer = self._server(request)
        if request.url.path == self._path:
            self.reached.set()
            await self.opened.wait()
        return answer


def gated(server: FakeSglang, path: str) -> tuple[Gate, AsyncClient]:
    gate = Gate(server, path)
    http = httpx.AsyncClient(transport=httpx.MockTransport(gate))
    return gate, AsyncClient("http://server", http=http, server="sglang")


@pytest.mark.parametrize("path", FENCED[:3])
async def test_a_cancelled_scope_leaves_nothing_paused(path: str) -> None:
    server = FakeSglang()
    gate, client = gated(server, path)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                await gate.reached.wait()
                scope.cancel()

            group.start_soon(cancel)
            await client.update("/b", version="7")
    assert scope.cancelled_caught
    assert server.calls[-1] == "/continue_generation"
    assert not server.paused


@pytest.mark.parametrize("path", FENCED[:3])
async def test_a_cancelled_task_leaves_nothing_paused(path: str) -> None:
    server = FakeSglang()
    gate, client = gated(server, path)
    task = asyncio.create_task(client.update("/b", version="7"))
    await gate.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.calls[-1] == "/continue_generation"
    assert not server.paused


async def test_cancelled_while_it_continues_it_continues_all_the_same() -> None:
    server = FakeSglang()
    gate, client = gated(server, "/continue_generation")
    task = asyncio.create_task(client.update("/b", version="7"))
    await gate.reached.wait()
    task.cancel()
    asyncio.get_running_loop().call_soon(gate.opened.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not server.paused
    assert client._session.fences == []


def test_ctrl_c_in_the_body_leaves_nothing_paused() -> None:
    server = FakeSglang()
    with (
        blocking(server, server="sglang") as client,
        pytest.raises(KeyboardInterrupt),
        client.paused(),
    ):
        raise KeyboardInterrupt
    assert not server.paused


# --- commands that only pass through


def test_every_blocking_command_reaches_its_route() -> None:
    server = FakeSglang()
    with blocking(server) as client:
        client.pause("abort")
        assert server.paused
        assert client.flush() is None
        client.resume()
        assert not server.paused
        client.wait_ready()
        assert client.url == "http://server"
        assert repr(client) == "<Client http://server sglang>"
        assert repr(client.paused("abort")) == "<PausedServer http://server abort>"


async def test_every_asynchronous_command_reaches_its_route() -> None:
    server = FakeSglang()
    async with asynchronous(server) as client:
        await client.pause("abort")
        assert server.paused
        assert await client.flush() is None
        await client.resume()
        assert not server.paused
        assert client.url == "http://server"
        assert repr(client) == "<AsyncClient http://server not asked yet>"
        paused = client.paused()
        assert repr(paused) == "<AsyncPausedServer http://server by its own mode>"


def test_events_of_a_blocking_client() -> None:
    server = FakeSglang()
    server.meets["/hotswap/v1/events"] = lambda _: httpx.Response(200, content=HELLO)
    with blocking(server, server="hotswap") as client, client.events(after="0") as events:
        assert repr(events) == "<EventStream after 0>"
        assert [event.name for event in events] == ["hello", "shutdown"]
        assert events.last_id == "x-1"


async def test_events_of_an_asynchronous_client() -> None:
    server = FakeSglang()
    server.meets["/hotswap/v1/events"] = lambda _: httpx.Response(200, content=HELLO)
    async with asynchronous(server, server="hotswap") as client, client.events() as events:
        assert repr(events) == "<AsyncEventStream after None>"
        assert [event.name async for event in events] == ["hello", "shutdown"]
        assert events.last_id == "x-1"


async def test_a_server_without_events() -> None:
    server = FakeSglang()
    async with asynchronous(server) as client, client.events() as events:
        with pytest.raises(RequestRefused, match="no hotswap server"):
            await anext(events)


def test_a_lost_connection_of_a_stream_and_addresses_that_are_none() -> None:
    server = FakeSglang()
    server.meets["/hotswap/v1/events"] = refused
    with (
        blocking(server, server="hotswap") as client,
        client.events(reconnect_s=0.3) as events,
        pytest.raises(NoAnswer, match="ConnectError"),
    ):
        next(events)
    with pytest.raises(ValueError, match="wanted one like"):
        Client("server:30000")
    with pytest.raises(ValueError, match="vllm"):
        Client("http://server", server="vllm")
    client = Client("http://server")
    client.close()
    client.close()


async def test_an_own_http_client_is_closed() -> None:
    client = AsyncClient("http://server")
    await client.close()
    assert client._http.is_closed
