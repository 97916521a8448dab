"""A3, A4, A5, A17, A18, A19: pauses, updates and requests in every order; nobody hangs (O4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotswap.testing.checkpoints import make_labelled_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.evidence import NEW_TOKENS, PROMPTS, Evidence, assert_equal
from tests.process.fresh import fresh
from tests.process.http_client import LIMIT_S, Streams, client_of, generate_body
from tests.process.served import Served, in_both_dialects, with_pairs
from tests.process.told import flush_refused, flushed, refusal
from tests.process.update_routes import MODES, ROUTES, Delivery, deliver

pytestmark = pytest.mark.process

LONG = 150
# Output tokens of a request that ends because somebody ends it.
ENDLESS = 1800


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("labelled")
    return [make_labelled_checkpoint(root / f"{label}", label=label) for label in range(2)]


@pytest.fixture(scope="module", params=["gr", "sglang"])
def holding(
    request: pytest.FixtureRequest, labelled: list[Path]
) -> Iterator[tuple[str, ServerProcess]]:
    """Runs two requests at a time, and holds those that meet a closed gate: in GR's
    dialect because it is told to."""
    dialect = request.param
    arguments = ["--dialect", dialect, "--max-running-requests", "2"]
    if dialect == "gr":
        arguments += ["--while-paused", "hold"]
    environ = {"OMP_NUM_THREADS": "1"}
    with ServerProcess(labelled[0], *arguments, environ=environ) as process:
        yield dialect, process
        assert process.exit_code is None, process.log
        assert "Traceback" not in process.log, process.log


async def shows(served: Served, directory: Path) -> None:
    """The weights are those of ``directory``; every prompt is asked for in one dialect."""
    wanted = await fresh(directory)
    if served.dialect == "gr":
        assert_equal(await Evidence.of(served.client), wanted)
        return
    assert await served.client.checksums() == wanted.checksums
    assert await served.client.greedy(PROMPTS[:3], NEW_TOKENS) == wanted.tokens[:3]


@pytest.mark.parametrize("route", ROUTES)
async def test_a3_flush_succeeds_beside_retracted_requests(
    holding: tuple[str, ServerProcess], labelled: list[Path], route: str
) -> None:
    dialect, process = holding
    async with client_of(process.base_url) as client, Streams(client) as streams:
        await client.update(labelled[0], weight_version="zero")
        running = [streams.start(prompt, LONG) for prompt in PROMPTS[:8]]
        await asyncio.gather(*(stream.has_tokens() for stream in running[:2]))
        await client.until_status(lambda status: status["http_requests"] == 8)
        # Not paused: a refusal that says why, at once.
        assert "retract" in await flush_refused(client, dialect)

        await client.pause("retract")
        before = (await client.get("/status"))[1]["in_flight"]
        assert before == {"running": 0, "waiting": 8, "holding_kv": 0}
        await flushed(client, dialect)
        delivery = Delivery(directory=labelled[1], version="one", flush_cache=True)
        status, reply = await deliver(client, route, delivery)
        assert (status, reply["flushed_cache"], reply["num_paused_requests"]) == (200, True, 8)
        assert reply["num_aborted_requests"] == 0
        await client.resume()

        replies = await asyncio.gather(*(stream.finished() for stream in running))
        for whole in replies:
            assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": LONG}
            for span in whole["meta_info"]["weight_versions"]:
                labels = {token % 2 for token in whole["output_ids"][span["start"] : span["end"]]}
                assert labels == {["zero", "one"].index(span["version"])}
        # Once they have finished, the flush that was refused succeeds.
        await flushed(client, dialect)


@with_pairs("mode, asked", [(mode, asked) for mode in MODES for asked in (None, *MODES)])
@pytest.mark.parametrize("route", ROUTES)
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


@with_pairs("swap, mode", [(swap, mode) for swap in MODES for mode in MODES])
@pytest.mark.parametrize("route", ROUTES)
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


@in_both_dialects
@pytest.mark.parametrize("route", ROUTES)
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


@pytest.mark.parametrize("mode", MODES)
async def test_a18_rejected_at_once_while_paused(served: Served, b: Path, mode: str) -> None:
    client = served.client
    await client.pause(mode)
    for prompt in PROMPTS[:3]:
        answer = await client.post("/generate", input_ids=prompt)
        refusal(served.dialect, "paused", answer, reports_success=False)
    await client.update(b)
    status, _ = await client.post("/generate", input_ids=PROMPTS[0])
    assert status == 503
    await client.resume()

    assert (await client.greedy(PROMPTS[:3], NEW_TOKENS)) == (await fresh(b)).tokens[:3]


@pytest.mark.parametrize("mode", MODES)
async def test_a18_held_while_paused_and_served_once_by_the_new_weights(
    holding: tuple[str, ServerProcess], labelled: list[Path], mode: str
) -> None:
    async with client_of(holding[1].base_url) as client, Streams(client) as streams:
        await client.update(labelled[0], weight_version="zero")
        await client.pause(mode)
        held = [streams.start(prompt, 20) for prompt in PROMPTS[:3]]
        await client.until_status(lambda status: status["http_requests"] == 3)
        await client.update(labelled[1], weight_version="one")
        assert all(stream.status is None for stream in held), "answered while paused"
        assert (await client.get("/status"))[1]["in_flight"]["running"] == 0
        await client.resume()
        for stream in held:
            reply = await stream.finished()
            assert {token % 2 for token in reply["output_ids"]} == {1}
            versions = [span["version"] for span in reply["meta_info"]["weight_versions"]]
            assert versions == ["one"]
        assert (await client.get("/status"))[1]["http_requests"] == 0


async def test_a19_an_abort_ends_every_request_and_keeps_what_it_wrote(
    holding: tuple[str, ServerProcess], labelled: list[Path]
) -> None:
    """One that is streamed, one that is not, two in the queue, and one just accepted."""
    async with client_of(holding[1].base_url) as client, Streams(client) as streams:
        await client.update(labelled[0], weight_version="zero")
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
        assert (await client.pause("abort"))["num_aborted_requests"] == 5
        async with asyncio.timeout(LIMIT_S):
            streamed, *replies = await asyncio.gather(stream.finished(), running, *queued)
            status, accepted = await client.get(f"/result/accepted?timeout={LIMIT_S:g}")
        for reply in (streamed, *replies, accepted):
            assert reply["meta_info"]["finish_reason"]["type"] == "abort"
            assert reply["meta_info"]["completion_tokens"] == len(reply["output_ids"]) < ENDLESS
            assert reply["meta_info"]["weight_version"] == "zero"
        assert (status, accepted["state"]) == (200, "aborted")
        assert streamed["output_ids"][: len(before)] == before
        assert [reply["output_ids"] for reply in (*replies[1:], accepted)] == [[], [], []]
        in_flight = (await client.get("/status"))[1]["in_flight"]
        assert in_flight == {"running": 0, "waiting": 0, "holding_kv": 0}
        await client.resume()
        # What was kept is what the same weights write again.
        again = await client.greedy(PROMPTS[:2], 8)
        for reply, tokens in zip((streamed, replies[0]), again, strict=True):
            shared = min(8, len(reply["output_ids"]))
            assert reply["output_ids"][:shared] == tokens[:shared]
        assert (await client.get("/status"))[1]["http_requests"] == 0
