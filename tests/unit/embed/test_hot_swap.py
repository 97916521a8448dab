"""hotswap around a module, in async code: updates, the mounted app, torn weights, shutdown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest
import torch
from starlette.applications import Starlette
from starlette.routing import Mount
from torch import nn

from hotswap.embed import GatedEngine, HotSwap
from hotswap.errors import (
    IllegalCommand,
    ShuttingDown,
    UpdateFailed,
    UpdateRejected,
    WeightsNotWhole,
)
from hotswap.settings import Settings
from hotswap.state import Change, State
from hotswap.testing.fakes import FakeStrategy, Steps
from hotswap.types import LoadMode, PauseMode, Scope, WeightStamp
from hotswap.weights.target import WeightTarget
from tests.unit.embed.modules import LIMIT_S, checkpoint, filled, of_another, output


@pytest.fixture
def b(tmp_path: Path) -> str:
    return checkpoint(tmp_path / "b", 2.0)


def fakes(steps: Steps, **sources: float) -> FakeStrategy:
    return FakeStrategy(
        sources={name: dict(filled(value).state_dict()) for name, value in sources.items()},
        steps=steps,
    )


def updating(swap: HotSwap) -> asyncio.Event:
    """Set once the machine is UPDATING: the update then waits for those inside the gate."""
    begun = asyncio.Event()

    def see(_change: Change) -> None:
        if swap.controller.machine.state is State.UPDATING:
            begun.set()

    swap.controller.machine.observe(see)
    return begun


@pytest.mark.parametrize("mode", list(LoadMode))
async def test_an_update_is_in_place_and_between_two_passes(b: str, mode: LoadMode) -> None:
    module = filled(1.0)
    places = [weight.data_ptr() for weight in module.parameters()]
    async with HotSwap(module, flush=lambda: 7) as swap:
        begun = updating(swap)
        async with swap.gate:
            assert output(module) == 16.0
            update = of_another(swap.update(b, version="2", mode=mode))
            await begun.wait()
            assert output(module) == 16.0
        report = await asyncio.wait_for(update, LIMIT_S)
        async with swap.gate:
            assert output(module) == 64.0
    assert report.stamp == WeightStamp(version="2", update_count=1, epoch=1)
    assert swap.engine.stamp == report.stamp
    assert (report.tensors_applied, report.entries_cleared) == (2, 7)
    assert [weight.data_ptr() for weight in module.parameters()] == places


async def test_a_refused_source_changes_nothing_and_the_gate_stays_open(tmp_path: Path) -> None:
    module = filled(1.0)
    async with HotSwap(module) as swap:
        with pytest.raises(UpdateRejected, match="nowhere"):
            await swap.update(str(tmp_path / "nowhere"))
        async with swap.gate:
            assert output(module) == 16.0
    assert repr(swap) == ("<HotSwap serving <WeightTarget Sequential 2 tensors>>")


async def test_a_number_is_a_version_too_and_becomes_text(b: str) -> None:
    async with HotSwap(filled(1.0)) as swap:
        assert (await swap.update(b, version=7)).stamp.version == "7"
        assert (await swap.update(b)).stamp.version == "7"


async def test_before_the_block_an_update_is_refused(b: str) -> None:
    module = filled(1.0)
    swap = HotSwap(module)
    with pytest.raises(RuntimeError, match="update inside its 'async with' block"):
        await swap.update(b)
    async with swap, swap.gate:
        assert output(module) == 16.0


async def test_inside_the_gate_an_update_is_refused(b: str) -> None:
    async with HotSwap(filled(1.0)) as swap, swap.gate:
        with pytest.raises(RuntimeError, match="update inside the gate would wait for itself"):
            await swap.update(b)


async def test_after_a_failed_commit_nobody_comes_in_until_a_full_update(b: str) -> None:
    module = filled(1.0)
    target = WeightTarget(module)
    failing = [True]

    def fail() -> None:
        if failing[0]:
            raise RuntimeError("injected")

    target.after_load(fail)
    async with HotSwap(target) as swap:
        with pytest.raises(UpdateFailed, match="injected"):
            await swap.update(b)
        with pytest.raises(WeightsNotWhole, match="send a full update"):
            await swap.gate.__aenter__()
        with pytest.raises(IllegalCommand):
            await swap.controller.resume()
        failing[0] = False
        await swap.update(b)
        async with swap.gate:
            assert output(module) == 64.0


async def test_after_a_shutdown_with_torn_weights_the_gate_still_refuses(b: str) -> None:
    target = WeightTarget(filled(1.0))

    def fail() -> None:
        raise RuntimeError("injected")

    target.after_load(fail)
    async with HotSwap(target) as swap:
        with pytest.raises(UpdateFailed):
            await swap.update(b)
    with pytest.raises(WeightsNotWhole):
        await swap.gate.__aenter__()


async def test_a_shutdown_while_the_source_is_read_lets_it_go() -> None:
    module, steps = filled(1.0), Steps()
    strategy = fakes(steps, B=2.0)
    async with HotSwap(module, strategies={"disk": strategy}) as swap:
        reading = steps.hold("open")
        update = asyncio.create_task(swap.update("B"))
        await reading.arrived.wait()
    with pytest.raises(ShuttingDown):
        await update
    async with swap.gate:
        assert output(module) == 16.0


async def test_a_shutdown_that_waits_for_a_forward_pass_drops_the_update(b: str) -> None:
    module = filled(1.0)
    async with HotSwap(module) as swap:
        begun = updating(swap)
        async with swap.gate:
            update = of_another(swap.update(b))
            await begun.wait()
            leaving = asyncio.create_task(swap.__aexit__(None, None, None))
            with pytest.raises(ShuttingDown):
                await update
        await asyncio.wait_for(leaving, LIMIT_S)
    async with swap.gate:
        assert output(module) == 16.0


async def test_a_shutdown_after_the_first_write_lets_the_update_end(b: str) -> None:
    module = filled(1.0)
    target = WeightTarget(module)
    written, may_end = threading.Event(), threading.Event()

    def finish() -> None:
        written.set()
        assert may_end.wait(LIMIT_S)

    target.after_load(finish)
    async with HotSwap(target) as swap:
        update = asyncio.create_task(swap.update(b))
        assert await asyncio.to_thread(written.wait, LIMIT_S)
        leaving = asyncio.create_task(swap.__aexit__(None, None, None))
        await asyncio.sleep(0)
        assert not leaving.done()
        may_end.set()
        await asyncio.wait_for(leaving, LIMIT_S)
        assert (await update).stamp.epoch == 1
    async with swap.gate:
        assert output(module) == 64.0


async def test_a_paused_server_that_ends_lets_its_threads_go() -> None:
    module = filled(1.0)
    async with HotSwap(module) as swap:
        await swap.controller.pause(PauseMode.WAIT)
        waiting = asyncio.create_task(asyncio.to_thread(lambda: _pass(swap, module)))
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await asyncio.wait_for(waiting, LIMIT_S) == 16.0


async def test_passes_that_hold_every_worker_thread_do_not_hold_up_the_update(b: str) -> None:
    module = filled(1.0)
    threads = anyio.to_thread.current_default_thread_limiter()
    threads.total_tokens = 2
    async with HotSwap(module) as swap:
        await swap.controller.pause(PauseMode.WAIT)
        waiting = [
            asyncio.create_task(anyio.to_thread.run_sync(_pass, swap, module)) for _ in range(3)
        ]
        await anyio.wait_all_tasks_blocked()
        assert threads.available_tokens == 0
        await asyncio.wait_for(swap.update(b), LIMIT_S)
        await swap.controller.resume()
        assert await asyncio.wait_for(asyncio.gather(*waiting), LIMIT_S) == [64.0] * 3


def _pass(swap: HotSwap, module: nn.Module) -> float:
    with swap.gate:
        return output(module)


async def test_a_flush_that_does_not_count_has_cleared_none(b: str) -> None:
    kept = {"a": 1}
    async with HotSwap(filled(1.0), flush=kept.clear) as swap:
        assert (await swap.update(b)).entries_cleared == 0
    assert kept == {}


async def test_it_is_entered_once() -> None:
    swap = HotSwap(filled(1.0))
    async with swap:
        pass
    with pytest.raises(RuntimeError, match="make a new one"):
        await swap.__aenter__()


async def test_mounted_under_a_prefix_with_its_lifespan(b: str) -> None:
    module = filled(1.0)
    swap = HotSwap(module, settings=Settings(allow_weight_update=True))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with swap:
            yield

    outer = Starlette(routes=[Mount("/weights", swap.app)], lifespan=lifespan)
    transport = httpx.ASGITransport(outer)
    async with (
        outer.router.lifespan_context(outer),
        httpx.AsyncClient(transport=transport, base_url="http://embed.test") as client,
    ):
        assert (await client.get("/weights/ready")).status_code == 200
        reply = await client.post(
            "/weights/update_weights_from_disk", json={"model_path": b, "weight_version": "9"}
        )
        assert (reply.status_code, reply.json()["weight_version"]) == (200, "9")
        async with swap.gate:
            assert output(module) == 64.0
        sums = (await client.post("/weights/weights_checker", json={"action": "checksum"})).json()
        assert sums["success"]
        by_name = await client.get("/weights/get_weights_by_name", params={"name": "0.weight"})
        assert by_name.status_code == 200
        # There is nothing here that generates text.
        none = await client.post("/weights/generate", json={"input_ids": [1]})
        assert none.status_code == 404
    assert not swap.gate.closed


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"prompt": "x", "stream": true}'])
async def test_routes_that_generate_are_not_there_whatever_is_sent(path: str, body: bytes) -> None:
    swap = HotSwap(filled(1.0))
    transport = httpx.ASGITransport(swap.app)
    async with swap, httpx.AsyncClient(transport=transport, base_url="http://embed.test") as client:
        reply = await client.post(path, content=body)
    assert reply.status_code == 404
    assert "does not generate over HTTP" in reply.text


async def test_without_leave_the_app_shows_and_changes_nothing(b: str) -> None:
    swap = HotSwap(filled(1.0))
    transport = httpx.ASGITransport(swap.app)
    async with swap, httpx.AsyncClient(transport=transport, base_url="http://embed.test") as client:
        refused = await client.post("/update_weights_from_disk", json={"model_path": b})
        assert refused.status_code == 403
        assert (await client.get("/hotswap/v1/state")).json()["state"] == "serving"


async def test_the_engine_writes_only_behind_a_closed_gate() -> None:
    swap = HotSwap(filled(1.0))
    plan = swap.engine.plan(swap.engine.manifest(), Scope.FULL)
    for call in (
        lambda: swap.engine.write(plan, []),
        lambda: swap.engine.commit(WeightStamp()),
        lambda: swap.engine.reset_weights(()),
    ):
        with pytest.raises(RuntimeError, match="pause the engine first"):
            await call()
    assert await swap.engine.flush() == 0
    assert repr(swap.engine) == (
        "<GatedEngine <WeightTarget Sequential 2 tensors> <ForwardGate open, 0 inside>>"
    )


async def test_reset_spoils_the_weights_and_a_full_update_brings_them_back(b: str) -> None:
    module = filled(1.0)
    async with HotSwap(module) as swap:
        assert await swap.controller.reset() == ("0.weight", "1.weight")
        with pytest.raises(WeightsNotWhole):
            await swap.gate.__aenter__()
        await swap.update(b)
        assert torch.equal(await swap.engine.read_weight("0.weight", 1), torch.full((1, 4), 2.0))
        assert isinstance(swap.engine, GatedEngine)
