"""The routes around the update, on real servers: one for each dialect.

slime's check at its start, labels without a change of weights (A4, A5), sessions as
miles opens them, and what clients ask a server about itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotswap.testing.server import ServerProcess
from tests.process.evidence import NEW_TOKENS, PROMPTS
from tests.process.forked_server import ForkedServer
from tests.process.fresh import fresh
from tests.process.http_client import Client, Streams, client_of, generate_body

pytestmark = pytest.mark.process

DIALECTS = ("gr", "sglang")
HOLD_S = "0.3"
TOLD = {"enable_memory_saver": True, "base_gpu_id": 3}
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


@pytest.fixture(scope="module", params=DIALECTS)
def process(request: pytest.FixtureRequest, a: Path) -> Iterator[tuple[str, ServerProcess]]:
    """One server a dialect."""
    arguments = ("--dialect", request.param, "--hold-s", HOLD_S, "--server-info", json.dumps(TOLD))
    with ForkedServer(a, *arguments) as running:
        yield request.param, running
        assert "Traceback" not in running.log, running.log


@pytest.fixture
async def client(process: tuple[str, ServerProcess], a: Path) -> AsyncIterator[Client]:
    """A client of it; the server rests on ``a``, under version ``start``."""
    async with client_of(process[1].base_url) as client:
        await client.update(a, weight_version="start", pause_mode="abort")
        await client.resume()
        yield client


@pytest.fixture
def dialect(process: tuple[str, ServerProcess]) -> str:
    return process[0]


async def raw(client: Client, method: str, path: str, **options: Any) -> httpx.Response:
    return await client.http.request(method, path, **options)


async def test_the_check_that_slime_makes_at_its_start(client: Client, a: Path, b: Path) -> None:
    before = await client.checksums()
    await client.done("/weights_checker", action="snapshot")
    reply = await client.done("/weights_checker", action="reset_tensors")
    assert reply["success"] is True

    spoilt = await client.checksums()
    assert {name for name in before if spoilt[name] == before[name]} == {
        "model.rotary_emb.inv_freq"
    }
    assert (await client.state())["state"] == "invalid"
    assert (await client.get("/ready"))[1]["reasons"] == ["paused", "weights_not_whole"]
    assert (await client.post("/generate", input_ids=PROMPTS[0]))[0] == 503
    assert (await raw(client, "GET", "/health_generate")).status_code == 200
    status, reply = await client.post("/weights_checker", action="compare")
    assert (status, reply["success"]) == (400, False)
    assert "model.embed_tokens.weight" in reply["error_message"]

    await client.update(a, weight_version="1")
    reply = await client.done("/weights_checker", action="compare", allow_quant_error=True)
    assert reply["success"] is True
    assert await client.checksums() == before
    assert (await client.greedy(PROMPTS[:3], NEW_TOKENS)) == (await fresh(a)).tokens[:3]

    await client.update(b)
    status, reply = await client.post("/weights_checker", action="compare")
    assert (status, reply["success"]) == (400, False)


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place", "wait"])
async def test_a_reset_under_a_pause_leaves_the_server_paused(
    client: Client, a: Path, mode: str
) -> None:
    await client.pause(mode)
    await client.done("/weights_checker", action="reset_tensors", skip_tensor_list=["norm"])
    status, _ = await client.post("/continue_generation")
    assert status in (400, 409)
    await client.update(a)
    assert (await client.get("/ready"))[1]["reasons"] == ["paused"]
    await client.resume()
    assert (await client.greedy(PROMPTS[:1], NEW_TOKENS)) == (await fresh(a)).tokens[:1]


async def test_a_reset_beside_a_stream_is_refused_and_touches_nothing(client: Client) -> None:
    before = await client.checksums()
    async with Streams(client) as streams:
        stream = streams.start(PROMPTS[0], 1800)
        await stream.has_tokens()
        status, reply = await client.post("/weights_checker", action="reset_tensors")
        assert (status in (400, 409), reply["success"]) == (True, False)
        assert "pause_generation" in reply["error_message"]
    assert await client.checksums() == before
    assert (await client.get("/ready"))[0] == 200


@pytest.mark.parametrize("mode", [None, "retract", "in_place"])
async def test_a_stream_lives_through_a_relabel_and_names_both_labels(
    client: Client, mode: str | None
) -> None:
    async with Streams(client) as streams:
        stream = streams.start(PROMPTS[0], 200)
        await stream.has_tokens(3)
        if mode is not None:
            await client.pause(mode)
        epoch = (await client.version())["weight_epoch"]
        reply = await client.done(
            "/update_weight_version", new_version="relabelled", abort_all_requests=False
        )
        assert reply["num_aborted_requests"] == 0
        if mode is not None:
            await client.resume()
        meta = (await stream.finished())["meta_info"]

    assert meta["finish_reason"]["type"] == "length"
    spans = meta["weight_versions"]
    assert [span["version"] for span in spans] == ["start", "relabelled"]
    assert {span["weight_epoch"] for span in spans} == {epoch}
    assert (spans[0]["start"], spans[0]["end"], spans[1]["end"]) == (0, spans[1]["start"], 200)
    assert meta["weight_version"] == "relabelled"
    version = await client.version()
    assert (version["weight_version"], version["weight_epoch"]) == ("relabelled", epoch)


@pytest.mark.parametrize("mode", [None, "abort", "retract", "in_place", "wait"])
async def test_a_relabel_aborts_by_default(client: Client, mode: str | None) -> None:
    async with Streams(client) as streams:
        tokens = 400 if mode != "wait" else 20
        stream = streams.start(PROMPTS[0], tokens)
        await stream.has_tokens()
        if mode is not None:
            await client.pause(mode)
        reply = await client.done("/update_weight_version", new_version="x")
        meta = (await stream.finished())["meta_info"]
        assert meta["finish_reason"]["type"] == ("length" if mode == "wait" else "abort")
        assert reply["num_aborted_requests"] == (1 if mode in (None, "retract", "in_place") else 0)
        await client.resume()


async def test_cached_prefixes_outlive_a_relabel(client: Client) -> None:
    prompt = [7] * 64
    await client.generate(prompt, 4)
    await client.done("/update_weight_version", new_version="x")
    again = await client.generate(prompt, 4)

    assert again["meta_info"]["cached_tokens"] > 0
    assert again["meta_info"]["weight_version"] == "x"


async def test_relabels_and_updates_at_once_end_in_one_of_their_orders(
    client: Client, a: Path, b: Path
) -> None:
    epoch = (await client.version())["weight_epoch"]
    calls = [
        call
        for number in range(6)
        for call in (
            client.post("/update_weight_version", new_version=f"label-{number}"),
            client.post(
                "/update_weights_from_disk",
                model_path=str((a, b)[number % 2]),
                weight_version=f"update-{number}",
            ),
        )
    ]
    replies = await asyncio.gather(*calls)

    assert [status for status, _ in replies] == [200] * len(calls)
    version = await client.version()
    assert version["weight_epoch"] == epoch + 6
    assert version["weight_version"].partition("-")[0] in ("label", "update")
    tokens = await client.greedy(PROMPTS[:2], NEW_TOKENS)
    assert tokens in [(await fresh(directory)).tokens[:2] for directory in (a, b)]


async def test_weights_that_are_not_whole_get_no_label(client: Client, a: Path) -> None:
    await client.done("/weights_checker", action="reset_tensors")
    status, reply = await client.post("/update_weight_version", new_version="x")
    assert (status in (400, 409), reply["success"]) == (True, False)
    assert (await client.version())["weight_version"] == "start"
    await client.update(a)


async def test_miles_s_session_around_an_update_and_a_label(client: Client, b: Path) -> None:
    await client.pause("retract")
    assert (await raw(client, "GET", "/flush_cache")).status_code == 200
    await client.done("/begin_weight_update", selector="all")
    status, reply = await client.post("/begin_weight_update", selector="all")
    assert (status, reply["success"]) == (400, False)
    await client.update(b)
    await client.done("/update_weight_version", new_version="9", abort_all_requests=False)
    await client.done("/end_weight_update")
    assert (await client.post("/end_weight_update"))[0] == 400
    await client.resume()

    assert (await client.get("/model_info"))[1]["weight_version"] == "9"
    assert (await client.greedy(PROMPTS[:2], NEW_TOKENS)) == (await fresh(b)).tokens[:2]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.weight",
        "layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.qkv_proj.weight",
    ],
)
async def test_weights_by_any_of_their_names(
    client: Client, dialect: str, method: str, name: str
) -> None:
    path, q_proj = "/get_weights_by_name", "model.layers.0.self_attn.q_proj.weight"
    reply = await raw(client, method, path, json={"name": name, "truncate_size": 2})
    wanted = await raw(client, "GET", path, params={"name": q_proj, "truncate_size": "2"})

    assert reply.status_code == 200
    # The first rows of the fused weight are those of q_proj.
    assert reply.json() == wanted.json()
    rows = reply.json() if dialect == "sglang" else reply.json()["parameter"]
    assert (len(rows), type(rows[0][0])) == (2, float)
    unknown = await raw(client, method, path, json={"name": "nope"})
    assert unknown.status_code == (400 if dialect == "sglang" else 404)
    assert "nope" in unknown.json()["error"]["message"]


async def test_a_failed_update_is_told_in_the_dialect(
    client: Client, dialect: str, tmp_path: Path
) -> None:
    status, body = await client.post("/update_weights_from_disk", model_path=str(tmp_path / "no"))

    assert (status, body["success"]) == (400, False)
    assert body["message"] == body["error_message"]
    assert ("object" in body) is (dialect == "sglang")
    assert ("error" in body) is (dialect == "gr")


async def test_a_flush_is_told_in_the_dialect(client: Client, dialect: str) -> None:
    reply = await raw(client, "GET", "/flush_cache")
    assert reply.status_code == 200
    if dialect == "sglang":
        assert reply.text == FLUSHED
    else:
        assert reply.json()["success"] is True
    async with Streams(client) as streams:
        stream = streams.start(PROMPTS[0], 1800)
        await stream.has_tokens()
        reply = await raw(client, "POST", "/flush_cache")
        assert reply.status_code == 400
        assert reply.headers["content-type"].startswith(
            "text/plain" if dialect == "sglang" else "application/json"
        )


async def test_a_request_meets_a_pause_as_the_dialect_says(client: Client, dialect: str) -> None:
    await client.pause("abort")
    async with Streams(client) as streams:
        stream = streams.start(PROMPTS[0], 4)
        if dialect == "sglang":
            await client.until_status(lambda status: status["http_requests"] == 1)
            await client.resume()
            assert len((await stream.finished())["output_ids"]) == 4
            await client.pause("abort")
            # Longer than --hold-s allows.
            stream = streams.start(PROMPTS[0], 4)
        await stream.until(lambda stream: stream.ended)
        assert stream.status == 503
        assert stream.error is not None
        assert stream.error["retryable"] is True
    await client.resume()


async def test_the_version_at_boot(a: Path) -> None:
    for dialect, wanted in (("gr", None), ("sglang", "default")):
        with ForkedServer(a, environ={"HOTSWAP_DIALECT": dialect}) as running:
            async with client_of(running.base_url) as client:
                assert (await client.version())["weight_version"] == wanted
                reply = await client.generate(PROMPTS[0], 2)
                assert reply["meta_info"]["weight_version"] == wanted


async def test_what_a_server_says_of_itself(client: Client, a: Path) -> None:
    for path in ("/server_info", "/get_server_info"):
        status, info = await client.get(path)
        assert status == 200
        assert {name: info[name] for name in TOLD} == TOLD
        assert (info["tp_size"], info["pp_size"], info["dp_size"], info["ep_size"]) == (1, 1, 1, 1)
        assert (info["host"], info["port"]) == ("127.0.0.1", client.http.base_url.port)
        assert info["max_total_num_tokens"] > 0
    status, info = await client.get("/model_info")
    assert (info["model_path"], info["is_generation"]) == (str(a), True)


async def test_loads_count_what_runs(client: Client) -> None:
    async with Streams(client) as streams:
        stream = streams.start(PROMPTS[0], 1800)
        await stream.has_tokens()
        (load,) = (await client.get("/v1/loads?include=core"))[1]["loads"]
        assert (load["num_reqs"], load["num_running_reqs"], load["num_waiting_reqs"]) == (1, 1, 0)
        assert load["num_total_tokens"] > 0
        (old,) = (await client.get("/get_load"))[1]
        assert old["num_reqs"] == 1
        await client.pause("abort")
        (load,) = (await client.get("/v1/loads?include=core"))[1]["loads"]
        assert load["num_reqs"] == 0
    await client.resume()


@pytest.mark.parametrize("mode", [None, "abort", "retract", "in_place", "wait"])
async def test_the_probe_is_well_serving_and_paused(client: Client, mode: str | None) -> None:
    if mode is not None:
        await client.pause(mode)
    for path in ("/health_generate", "/ping"):
        reply = await raw(client, "GET", path)
        assert (reply.status_code, reply.content) == (200, b"")
    if mode is not None:
        await client.resume()


async def test_a_request_without_a_temperature(client: Client, dialect: str) -> None:
    """Greedy in GR's dialect, drawn at 1 in SGLang's."""

    async def written(**sampling: object) -> list[int]:
        body = {"max_new_tokens": 16, "ignore_eos": True, **sampling}
        reply = await client.done("/generate", input_ids=PROMPTS[0], sampling_params=body)
        return list(reply["output_ids"])

    drawn = [await written(seed=seed) for seed in range(3)]
    greedy = await written(temperature=0)
    if dialect == "gr":
        assert drawn == [greedy] * 3
    else:
        assert drawn == [await written(seed=seed, temperature=1.0) for seed in range(3)]
        assert len({tuple(ids) for ids in [*drawn, greedy]}) == 4


async def test_an_id_to_abort_is_what_the_dialect_takes_it_for(
    client: Client, dialect: str
) -> None:
    rids = ("step-1", "step-10", "other")
    for rid in rids:
        body = generate_body(PROMPTS[0], 1500) | {"request_id": rid}
        assert (await client.post("/submit", **body))[0] == 202
    reply = await client.call("POST", "/abort_request", {"rid": "step-1"})
    assert (reply.status_code, reply.content) == (200, b"")
    ended = ["step-1"] if dialect == "gr" else ["step-1", "step-10"]
    for rid in ended:
        status, result = await client.get(f"/result/{rid}?timeout=60")
        assert (status, result["state"]) == (200, "aborted")
    left = [rid for rid in rids if rid not in ended]
    # Not yet aborted, though it may have ended by itself meanwhile.
    states = {rid: (await client.get(f"/requests/{rid}"))[1]["state"] for rid in left}
    assert "aborted" not in states.values()
    await client.call("POST", "/abort_request", {"abort_all": True})
    for rid in left:
        assert (await client.get(f"/result/{rid}?timeout=60"))[0] == 200
