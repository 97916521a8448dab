"""A1: a write that fails in the middle of a commit, at every tensor there is.

Staged: the commit is rolled forward, whole and serving. Direct: not whole, nothing is
generated until a full update. Which of the two it was is counted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hotswap.testing.checkpoints import make_checkpoint, make_labelled_checkpoint
from tests.process.evidence import PROMPTS, Evidence, assert_equal
from tests.process.failing import WatchedTarget, fail_at, watched
from tests.process.fresh import fresh
from tests.process.http_client import Client, Streams, text_of
from tests.process.in_process import load, serving
from tests.process.update_routes import DISK, EACH_ROUTE, PUSH, ROUTES, Delivery, deliver
from tests.tiers import mostly_long

pytestmark = pytest.mark.process

TENSORS = 21
EVERY_TENSOR = mostly_long(range(TENSORS), but=[0, TENSORS // 2, TENSORS - 1])
FOR_EVER = range(10_000)
# A body lies in host memory before anything live is written, whatever the load mode.
STAGED = [*((route, "staged") for route in ROUTES), (PUSH, "direct")]
DIRECT = mostly_long([route for route in ROUTES if route != PUSH], but=[DISK])


async def assert_refuses_to_generate(client: Client) -> None:
    """Not whole, and open about it; alive all the same."""
    state = await client.state()
    assert (state["state"], state["facts"]["weights"]) == ("invalid", "torn")
    assert "weights_not_whole" in state["reasons"]
    status, reply = await client.post("/generate", input_ids=[1, 2])
    assert (status, reply["error"]["code"]) == (503, "weights_not_whole")
    assert reply["error"]["retryable"] is True
    status, reply = await client.post("/continue_generation")
    assert (status, reply["error"]["code"]) == (409, "conflict")
    assert "full update" in text_of(reply)
    assert (await client.get("/health"))[0] == 200
    status, ready = await client.get("/ready")
    assert (status, "weights_not_whole" in ready["reasons"]) == (503, True)


@pytest.mark.parametrize("staged", mostly_long(STAGED, but=[(DISK, "staged")]), ids="-".join)
@pytest.mark.parametrize("at", EVERY_TENSOR)
async def test_staged_is_rolled_forward(a: Path, b: Path, staged: tuple[str, str], at: int) -> None:
    route, mode = staged
    loaded = watched(load(a), before_write=fail_at(at))
    async with serving(loaded, load_mode=mode) as server:
        status, reply = await deliver(
            server.client, route, Delivery(directory=b, version="v1", token_step=1)
        )

        assert (status, reply["weight_version"], reply["tensors_loaded"]) == (200, "v1", TENSORS)
        assert isinstance(loaded.target, WatchedTarget)
        assert loaded.target.writes == at + 1 + TENSORS
        assert (await server.client.state())["state"] == "serving"
        assert (await server.client.version())["weight_update_count"] == 1
        assert_equal(await Evidence.of(server.client), await fresh(b))
        assert list((await server.client.updates()).values()) == [1]
        assert [key.split("/")[1] for key in await server.client.updates()] == ["rolled_forward"]


@pytest.mark.parametrize("route", DIRECT)
@pytest.mark.parametrize("at", EVERY_TENSOR)
async def test_direct_is_invalid_until_a_full_update(
    a: Path, b: Path, route: str, at: int, tmp_path: Path
) -> None:
    loaded = watched(load(a), before_write=fail_at(at))
    async with serving(loaded, load_mode="direct") as server:
        client = server.client
        before = await client.snapshot()
        status, reply = await deliver(client, route, Delivery(directory=b, version="v1"))

        assert (status, reply["success"]) == (500, False)
        assert reply["error"]["code"] == "update_failed"
        assert "full update" in text_of(reply)
        assert await client.version() == before.version
        assert (await client.get("/status"))[1]["model_path"] == before.model_path
        await assert_refuses_to_generate(client)

        status, _ = await deliver(client, route, Delivery(directory=tmp_path / "none"))
        assert status == 400
        await assert_refuses_to_generate(client)

        status, reply = await deliver(client, route, Delivery(directory=b, version="v2"))
        assert (status, reply["weight_version"], reply["weight_update_count"]) == (200, "v2", 1)
        assert (await client.state())["state"] == "serving"
        assert_equal(await Evidence.of(client), await fresh(b))
        counts = {key.split("/")[1]: count for key, count in (await client.updates()).items()}
        assert counts == {"failed": 1, "rejected": 1, "committed": 1}


@pytest.mark.parametrize("mode", ["staged", "direct"])
@pytest.mark.parametrize("route", EACH_ROUTE)
async def test_a_write_that_always_fails_ends_invalid(
    a: Path, b: Path, route: str, mode: str
) -> None:
    broken = list(FOR_EVER)
    loaded = watched(load(a), before_write=lambda at: fail_at(*broken)(at))
    async with serving(loaded, load_mode=mode) as server:
        for _ in range(2):
            status, reply = await deliver(server.client, route, Delivery(directory=b))
            assert (status, reply["error"]["code"]) == (500, "update_failed")
            await assert_refuses_to_generate(server.client)

        broken.clear()
        status, _ = await deliver(server.client, route, Delivery(directory=b))
        assert status == 200
        assert_equal(await Evidence.of(server.client), await fresh(b))
        updates = {key.split("/")[1]: n for key, n in (await server.client.updates()).items()}
        assert updates == {"failed": 2, "committed": 1}


@pytest.mark.parametrize(("times", "outcome"), [(1, "rolled_forward"), (2, "failed")])
async def test_a_commit_that_fails_after_the_last_write(
    a: Path, b: Path, times: int, outcome: str
) -> None:
    left = [RuntimeError("injected at the end")] * times

    def finish() -> None:
        if left:
            raise left.pop()

    async with serving(watched(load(a), before_finish=finish)) as server:
        status, _ = await server.client.post("/update_weights_from_disk", model_path=str(b))

        assert status == (200 if outcome == "rolled_forward" else 500)
        assert await server.client.updates() == {f"disk/{outcome}": 1}
        if outcome == "failed":
            await assert_refuses_to_generate(server.client)
            await server.client.update(b)
        assert_equal(await Evidence.of(server.client), await fresh(b))


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_stream_waits_through_invalid_and_goes_on_with_whole_weights(
    tmp_path: Path, mode: str
) -> None:
    """Labelled checkpoints: a token of the torn state would belong to neither span."""
    even, odd = (make_labelled_checkpoint(tmp_path / f"{n}", label=n) for n in range(2))
    loaded = watched(load(even), before_write=fail_at(7))
    async with serving(loaded, load_mode="direct") as server, Streams(server.client) as streams:
        stream = streams.start(PROMPTS[0], 300)
        await stream.has_tokens(3)
        status, _ = await server.client.post(
            "/update_weights_from_disk", model_path=str(odd), pause_mode=mode
        )
        assert status == 500
        await assert_refuses_to_generate(server.client)
        seen = len(stream.tokens)

        await server.client.update(odd, weight_version="odd", flush_cache=mode == "retract")
        reply = await stream.finished()

    first, second = reply["meta_info"]["weight_versions"]
    assert (first["version"], second["version"], second["end"]) == (None, "odd", 300)
    assert seen <= first["end"] == second["start"]
    tokens = reply["output_ids"]
    assert {token % 2 for token in tokens[: first["end"]]} == {0}
    assert {token % 2 for token in tokens[first["end"] :]} == {1}


async def test_a_tied_model_is_rolled_forward_as_one_storage(tmp_path: Path) -> None:
    a, b = (make_checkpoint(tmp_path / f"{n}", tied=True, seed=n) for n in (1, 2))
    loaded = watched(load(a), before_write=fail_at(0))
    address = loaded.model.lm_head.weight.data_ptr()
    async with serving(loaded) as server:
        await server.client.update(b)

        assert_equal(await Evidence.of(server.client), await fresh(b))
        assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
        assert loaded.model.lm_head.weight.data_ptr() == address
        assert await server.client.updates() == {"disk/rolled_forward": 1}
