"""A3, A4, A5, A17, A18, A19: pauses, updates and requests in every order; nobody hangs (O4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotswap.testing.checkpoints import make_labelled_checkpoint
from tests.process.evidence import NEW_TOKENS, PROMPTS, Evidence, assert_equal
from tests.process.fresh import fresh
from tests.process.http_client import LIMIT_S, Client, Streams, generate_body
from tests.process.in_process import load, serving
from tests.process.served import Flavour, Served, in_every_flavour, of_every_flavour, with_pairs
from tests.process.told import flush_refused, flushed, refusal
from tests.process.update_routes import DISK, EACH_ROUTE, MODES, ROUTES, Delivery, deliver

pytestmark = pytest.mark.process

LONG = 150
DISK_FIRST = [DISK, *(route for route in ROUTES if route != DISK)]
# Output tokens of a request that ends because somebody ends it.
ENDLESS = 1800


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("labelled")
    return [make_labelled_checkpoint(root / f"{label}", label=label) for label in range(2)]


@asynccontextmanager
async def two_at_a_time(labelled: list[Path], flavour: Flavour) -> AsyncIterator[Client]:
    """A server that runs two requests at a time, on the even tokens' weights."""
    loaded = load(labelled[0])
    async with serving(loaded, max_running_requests=2, **flavour.settings) as server:
        await server.client.update(labelled[0], weight_version="zero")
        yield server.client


async def shows(served: Served, directory: Path) -> None:
    """The weights are those of ``directory``; every prompt is asked for in one dialect."""
    wanted = await fresh(directory)
    if served.dialect == "gr":
        assert_equal(await Evidence.of(served.client), wanted)
        return
    assert await served.client.checksums() == wanted.checksums
    assert await served.client.greedy(PROMPTS[:3], NEW_TOKENS) == wanted.tokens[:3]


# What is left of eight requests, of which two run, once a pause is in effect.
LEFT = {
    "abort": {"running": 0, "waiting": 0, "holding_kv": 0},
    "retract": {"running": 0, "waiting": 8, "holding_kv": 0},
    "in_place": {"running": 2, "waiting": 6, "holding_kv": 2},
    "wait": {"running": 0, "waiting": 6, "holding_kv": 0},
}


@of_every_flavour("mode", [("retract",), *((mode,) for mode in MODES if mode != "retract")])
@pytest.mark.parametrize("route", EACH_ROUTE)
async def test_a3_a_flush_succeeds_unless_somebody_holds_kv(
    labelled: list[Path], route: str, flavour: Flavour, mode: str
) -> None:
    async with two_at_a_time(labelled, flavour) as client, Streams(client) as streams:
        lengths = [LONG] * 2 + [10] * 6
        asked = [streams.start(*one) for one in zip(PROMPTS[:8], lengths, strict=True)]
        await asyncio.gather(*(stream.has_tokens() for stream in asked[:2]))
        await client.until_status(lambda status: status["http_requests"] == 8)
        # Not paused: a refusal that says why, at once.
        assert "retract" in await flush_refused(client, flavour.dialect)

        await client.pause(mode)
        left = (await client.get("/status"))[1]["in_flight"]
        assert left == LEFT[mode]
        if left["holding_kv"]:
            assert "retract" in await flush_refused(client, flavour.dialect)
        else:
            await flushed(client, flavour.dialect)
        delivery = Delivery(directory=labelled[1], version="one", flush_cache=True)
        status, reply = await deliver(client, route, delivery)
        assert (status, reply["flushed_cache"]) == (200, True)
        assert reply["num_paused_requests"] == left["running"] + left["waiting"]
        assert reply["num_aborted_requests"] == 0
        await client.resume()

        for stream, length in zip(asked, lengths, strict=True):
            whole = await stream.finished()
            ended = whole["meta_info"]["finish_reason"]
            if mode == "abort":
                assert ended["type"] == "abort"
            else:
                assert ended == {"type": "length", "length": length}
            each_span_is_of_its_weights(whole)
        # Once they have finished, the flush that was refused succeeds.
        await flushed(client, flavour.dialect)


def each_span_is_of_its_weights(reply: Any) -> None:
    for span in reply["meta_info"]["weight_versions"]:
        labels = {token % 2 for token in reply["output_ids"][span["start"] : span["end"]]}
        assert labels == {["zero", "one"].index(span["version"])}


@with_pairs(
    "mode, asked", [(mode, asked) for mode in MODES for asked in (None, *MODES)], routes=DISK_FIRST
)
async def test_a4_every_update_returns_under_every_pause(
    served: Served, a: Path, b: Path, route: str, mode: str, asked: str | None
) -> None:
    """``asked`` is what the update itself says of requests in flight."""
    client, short = served.client, mode == "wait"
    async with Streams(client) as streams:
        stream = streams.start(PROMPTS[3], 30 if short else LONG)
        await stream.has_tokens(2)
        await client.pause(mode)
        status, reply = await deliver(
            client, route, Delivery(directory=b, version="b", pause_mode=asked)
        )
        assert (status, reply["weight_version"]) == (200, "b")
        assert (await client.state())["facts"]["gate"] == mode
        await client.resume()
        meta = (await stream.finished())["meta_info"]
        ended = "abort" if "abort" in (mode, asked) and mode != "wait" else "length"
        assert meta["finish_reason"]["type"] == ended
        assert meta["weight_version_start"] == "start"
        if ended == "length" and mode != "wait":
            assert meta["weight_version_end"] == "b"
    tokens = (await client.generate(PROMPTS[0], NEW_TOKENS))["output_ids"]
    assert tokens == (await fresh(b)).tokens[0]


@with_pairs("swap, mode", [(swap, mode) for swap in MODES for mode in MODES], routes=DISK_FIRST)
async def test_a5_a_pause_that_arrives_while_an_update_waits(
    served: Served, b: Path, route: str, swap: str, mode: str
) -> None:
    client = served.client
    async with Streams(client) as streams:
        stream = streams.start(PROMPTS[5], LONG)
        await stream.has_tokens(2)
        delivery = Delivery(directory=b, version="b", pause_mode=swap)
        update = asyncio.create_task(deliver(client, route, delivery))
        # The fault's own delay; whichever comes first, both have to return.
        await asyncio.sleep(0.01)
        paused = await client.post("/pause_generation", mode=mode)
        updated = await update

        assert updated[0] == 200, updated
        assert paused[0] == 200, paused
        assert (await client.state())["facts"]["gate"] is not None
        await client.resume()
        meta = (await stream.finished())["meta_info"]
        assert meta["finish_reason"]["type"] in ("length", "abort")
        assert ("abort" in (swap, mode)) or meta["finish_reason"]["type"] == "length"
    await shows(served, b)


@in_every_flavour
@pytest.mark.parametrize("route", EACH_ROUTE)
@pytest.mark.parametrize("mode", MODES)
async def test_a17_the_gate_is_where_the_client_left_it(
    served: Served, b: Path, route: str, mode: str, tmp_path: Path
) -> None:
    client = served.client
    await client.pause(mode)
    for _ in range(2):
        answer = await deliver(client, route, Delivery(directory=tmp_path / "none"))
        assert "none" in refusal(served.dialect, "rejected", answer)
        assert (await client.state())["facts"]["gate"] == mode
        assert (await client.get("/ready")) == (
            503,
            {"ready": False, "reasons": ["paused"], "state": "paused"},
        )
    status, _ = await deliver(client, route, Delivery(directory=b))
    assert status == 200
    assert (await client.state())["facts"]["gate"] == mode
    for _ in range(3):
        assert (await client.resume())["paused"] is False
        assert (await client.get("/ready"))[0] == 200


@in_every_flavour
@pytest.mark.parametrize("route", EACH_ROUTE)
@pytest.mark.parametrize("mode", MODES)
async def test_a18_requests_that_come_while_paused(
    served: Served, labelled: list[Path], route: str, mode: str
) -> None:
    """Turned back at once, or served once, and never by the weights of before."""
    client, holds = served.client, served.flavour.while_paused == "hold"
    await client.update(labelled[0], weight_version="zero")
    await client.pause(mode)
    async with Streams(client) as streams:
        streamed = [streams.start(prompt, 20) for prompt in PROMPTS[:2]]
        whole = asyncio.ensure_future(client.post("/generate", **generate_body(PROMPTS[2], 20)))
        if holds:
            await client.until_status(lambda status: status["http_requests"] == 3)
        else:
            refusal(served.dialect, "paused", await whole, reports_success=False)
            for stream in streamed:
                await stream.until(lambda stream: stream.status == 503)
        status, _ = await deliver(client, route, Delivery(directory=labelled[1], version="one"))
        assert status == 200
        if holds:
            assert not whole.done()
            assert all(stream.status is None for stream in streamed), "answered while paused"
        assert (await client.get("/status"))[1]["in_flight"]["running"] == 0
        await client.resume()

        replies = [(await whole)[1], *[await stream.finished() for stream in streamed if holds]]
        if not holds:
            replies = [await client.generate(prompt, 20) for prompt in PROMPTS[:3]]
        assert len(replies) == 3
        for reply in replies:
            versions = [span["version"] for span in reply["meta_info"]["weight_versions"]]
            assert (versions, len(reply["output_ids"])) == (["one"], 20)
            each_span_is_of_its_weights(reply)
    assert (await client.get("/status"))[1]["http_requests"] == 0


@of_every_flavour("how", [("pause",), *((route,) for route in ROUTES)])
async def test_a19_an_abort_ends_every_request_and_keeps_what_it_wrote(
    labelled: list[Path], flavour: Flavour, how: str
) -> None:
    """One that is streamed, one that is not, two in the queue, and one just accepted.

    ``how`` is a pause of its own, or what an update brings.
    """
    async with two_at_a_time(labelled, flavour) as client, Streams(client) as streams:
        stream = streams.start(PROMPTS[0], ENDLESS)
        running = asyncio.ensure_future(client.generate(PROMPTS[1], ENDLESS))
        await stream.has_tokens(3)
        await client.until_status(lambda status: status["in_flight"]["running"] == 2)
        queued = [
            asyncio.ensure_future(client.generate(prompt, ENDLESS)) for prompt in PROMPTS[2:4]
        ]
        await client.until_status(lambda status: status["in_flight"]["waiting"] == 2)
        body = generate_body(PROMPTS[4], ENDLESS) | {"request_id": "accepted"}
        assert await client.post("/submit", **body) == (202, {"request_id": "accepted"})

        before = stream.tokens
        if how == "pause":
            reply = await client.pause("abort")
        else:
            delivery = Delivery(directory=labelled[1], version="one", pause_mode="abort")
            status, reply = await deliver(client, how, delivery)
            assert status == 200
        assert reply["num_aborted_requests"] == 5
        async with asyncio.timeout(LIMIT_S):
            streamed, *replies = await asyncio.gather(stream.finished(), running, *queued)
            status, accepted = await client.get(f"/result/accepted?timeout={LIMIT_S:g}")
        for reply in (streamed, *replies, accepted):
            assert reply["meta_info"]["finish_reason"]["type"] == "abort"
            assert reply["meta_info"]["completion_tokens"] == len(reply["output_ids"]) < ENDLESS
            assert reply["meta_info"]["weight_version"] == "zero"
            each_span_is_of_its_weights(reply)
        assert (status, accepted["state"]) == (200, "aborted")
        assert streamed["output_ids"][: len(before)] == before
        assert [reply["output_ids"] for reply in (*replies[1:], accepted)] == [[], [], []]
        in_flight = (await client.get("/status"))[1]["in_flight"]
        assert in_flight == {"running": 0, "waiting": 0, "holding_kv": 0}
        if how == "pause":
            await client.resume()
        else:
            await client.update(labelled[0])
        # What was kept is what the same weights write again.
        again = await client.greedy(PROMPTS[:2], 8)
        for reply, tokens in zip((streamed, replies[0]), again, strict=True):
            shared = min(8, len(reply["output_ids"]))
            assert reply["output_ids"][:shared] == tokens[:shared]
        assert (await client.get("/status"))[1]["http_requests"] == 0
