"""The client against real servers, in both dialects: what it says is what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from hotswap.client import (
    AsyncClient,
    Client,
    EventStream,
    NoAnswer,
    RequestRefused,
    ServerEvent,
    WeightsAfter,
    weights_after,
)
from hotswap.errors import InFlight, UpdateRejected
from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.forked_server import ForkedServer
from tests.process.http_client import client_of

pytestmark = pytest.mark.process

PROMPT = [1, 2, 3, 4]
ADMIN = "admin-key"


@pytest.fixture(scope="module", params=["gr", "sglang"])
def server(request: pytest.FixtureRequest, a: Path) -> Iterator[ServerProcess]:
    """One server a dialect; every test leaves it serving."""
    flags = ("--dialect", request.param)
    with ForkedServer(a, *flags) as process:
        yield process
        assert "Traceback" not in process.log, process.log


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """A blocking client."""
    with Client(server.base_url) as client:
        client.resume()
        yield client
        assert client.state().gate is None


def test_an_update_in_one_request(client: Client, b: Path) -> None:
    client.wait_ready()
    before = client.state()
    result = client.update(b, version=7, token_step=3)
    after = client.state()
    assert (result.weight_version, after.weight_version, after.token_step) == ("7", "7", 3)
    assert before.weight_epoch is not None
    assert after.weight_epoch == result.weight_epoch == before.weight_epoch + 1
    assert result.paused_ms is not None
    assert result.tensors == 21
    assert (after.model_path, after.weights, after.ready) == (str(b), "whole", True)


def test_a_fence_around_two_updates(client: Client, a: Path, b: Path) -> None:
    with client.paused("retract"):
        assert client.state().gate == "retract"
        client.update(b, version="one")
        client.update(a, version="two")
        assert client.state().state == "paused"
    seen = client.state()
    assert (seen.state, seen.weight_version) == ("serving", "two")


def test_a_rejected_update_says_so_and_leaves_nothing_behind(
    client: Client, b: Path, tmp_path: Path
) -> None:
    epoch = client.state().weight_epoch
    wrong = make_checkpoint(tmp_path / "wrong", seed=3, hidden_size=32)
    for source, fenced in ((wrong, None), (wrong, True), (tmp_path / "none", True)):
        with pytest.raises(UpdateRejected, match="the server answered 400") as caught:
            client.update(source, version="wrong", fenced=fenced)
        assert weights_after(caught.value) is WeightsAfter.UNTOUCHED
    seen = client.state()
    assert (seen.weight_epoch, seen.gate, seen.weights) == (epoch, None, "whole")


async def test_what_a_fence_meets_in_flight(server: ServerProcess, b: Path) -> None:
    """Frozen requests hold KV for ever, so that a flush is refused; then they go on."""
    async with client_of(server.base_url) as wire, AsyncClient(server.base_url) as client:
        running = asyncio.create_task(wire.generate(PROMPT, 512))
        await wire.until_status(lambda status: bool(status["in_flight"]["running"]))
        async with client.paused("in_place"):
            with pytest.raises(InFlight, match="refused 2 times"):
                await client.flush(times=2, every_s=0.01)
            await client.update(b, version="beside")
        reply = await running
    assert reply["meta_info"]["completion_tokens"] == 512
    assert reply["meta_info"]["weight_versions"][-1]["version"] == "beside"


async def test_requests_are_parked_and_none_is_lost(server: ServerProcess, a: Path) -> None:
    async with client_of(server.base_url) as wire, AsyncClient(server.base_url) as client:
        running = asyncio.create_task(wire.generate(PROMPT, 512))
        await wire.until_status(lambda status: bool(status["in_flight"]["running"]))
        await client.update(a, version="parked", fenced=True, pause_mode="retract")
        reply = await running
    assert reply["meta_info"]["finish_reason"]["type"] == "length"
    assert [span["version"] for span in reply["meta_info"]["weight_versions"]][-1] == "parked"


async def test_a_caller_that_gives_up_leaves_the_server_serving(
    server: ServerProcess, a: Path
) -> None:
    async with AsyncClient(server.base_url) as client:
        with anyio.move_on_after(0) as scope:
            async with client.paused():
                raise AssertionError("the body ran")
        assert scope.cancelled_caught
        with anyio.CancelScope() as inner:
            async with client.paused("abort"):
                inner.cancel()
                await anyio.sleep_forever()
        seen = await client.state()
    assert (seen.gate, seen.state) == (None, "serving")


def test_events_are_resumed_where_the_reader_left(client: Client, a: Path) -> None:
    with client.events() as events:
        assert next(events).name == "hello"
        client.update(a, version="seen")
        phases = [event.tells["phase"] for event in events_until(events, "committed")]
        last = events.last_id
    assert phases[0] == "received"
    client.flush()
    with client.events(after=last) as events:
        names = [event.name for event in events_until(events, None)]
    assert "gap" not in names
    assert names[0] == "hello"
    assert names[-1] == "flush"


def events_until(events: EventStream, phase: str | None) -> list[ServerEvent]:
    """Events up to that phase of an update, updates only; None: all, up to a flush."""
    found: list[ServerEvent] = []
    for event in events:
        if phase is None or event.name == "update":
            found.append(event)
        if event.name == "flush" or (phase is not None and event.tells.get("phase") == phase):
            return found
    raise AssertionError(f"the stream ended after {found}")


def test_keys_and_closed_routes(a: Path, b: Path) -> None:
    with ForkedServer(a, environ={"HOTSWAP_ADMIN_API_KEY": ADMIN}) as process:
        with Client(process.base_url) as nobody:
            assert nobody.state().ready
            for call in (nobody.pause, lambda: nobody.update(b), nobody.flush):
                with pytest.raises(RequestRefused, match="key") as caught:
                    call()
                assert caught.value.status == 401
        with Client(process.base_url, admin_key=ADMIN) as trainer:
            assert trainer.update(b, version="7").weight_version == "7"
            process.stop()
            with pytest.raises(NoAnswer, match="was not answered within 1 s"):
                trainer.update(a, version="8", within_s=1.0)
        assert ADMIN not in process.log


def test_a_server_without_updates(a: Path) -> None:
    with (
        ForkedServer(a, allow_weight_update=False) as process,
        Client(process.base_url) as client,
    ):
        with pytest.raises(RequestRefused, match="--allow-weight-update") as caught:
            client.update(a)
        assert caught.value.status == 403
        with client.events(after="0") as events:
            assert next(events).name == "hello"
            process.stop()
            assert [event.name for event in events][-1] == "shutdown"
