"""The gate: passes that are left elsewhere than entered, and those inside of others."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotswap.embed import ForwardGate, HotSwap, HotSwapThread
from hotswap.errors import IllegalCommand, UpdateRejected
from hotswap.settings import Settings
from hotswap.types import Update
from tests.unit.embed.modules import LIMIT_S, checkpoint, filled, of_another, output
from tests.unit.embed.test_gate import turns


def on_a_thread(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(LIMIT_S)


def leave(gate: ForwardGate) -> None:
    gate.__exit__(None, None, None)


def test_a_pass_may_be_left_by_another_thread_than_entered() -> None:
    gate = ForwardGate()
    on_a_thread(gate.__enter__)
    on_a_thread(gate.__enter__)
    assert repr(gate) == "<ForwardGate open, 2 inside>"
    on_a_thread(lambda: leave(gate))
    assert repr(gate) == "<ForwardGate open, 1 inside>"
    on_a_thread(lambda: leave(gate))
    assert repr(gate) == "<ForwardGate open, 0 inside>"
    asyncio.run(gate.close())
    assert gate.closed


async def test_a_pass_may_be_left_by_another_task_than_entered() -> None:
    gate = ForwardGate()
    await asyncio.create_task(gate.__aenter__())
    closing = asyncio.create_task(gate.close())
    await turns()
    assert not closing.done()
    await gate.__aexit__(None, None, None)
    await asyncio.wait_for(closing, LIMIT_S)


async def test_an_update_waits_for_every_pass_whoever_leaves_it() -> None:
    """Ten passes of ten threads; ten others leave them, and the last one lets the gate close."""
    gate = ForwardGate()
    for _ in range(10):
        await asyncio.to_thread(on_a_thread, gate.__enter__)
    closing = asyncio.create_task(gate.close())
    for _ in range(10):
        await turns()
        assert not closing.done()
        await asyncio.to_thread(on_a_thread, lambda: leave(gate))
    await asyncio.wait_for(closing, LIMIT_S)


def test_to_leave_more_often_than_to_enter_is_an_error() -> None:
    gate = ForwardGate()
    with gate:
        pass
    with pytest.raises(RuntimeError, match="left more often than it was entered"):
        leave(gate)
    assert repr(gate) == "<ForwardGate open, 0 inside>"


def test_who_has_been_let_out_by_another_is_no_longer_inside() -> None:
    gate = ForwardGate()
    gate.__enter__()
    with pytest.raises(RuntimeError, match="leave the gate first"):
        gate.check_outside("update")
    on_a_thread(lambda: leave(gate))
    gate.check_outside("update")
    asyncio.run(gate.close())


async def test_a_thread_of_a_pass_enters_again_while_the_gate_closes() -> None:
    gate = ForwardGate()

    def inner() -> str:
        with gate:
            return repr(gate)

    async with gate:
        closing = of_another(gate.close())
        await turns()
        within = await asyncio.wait_for(asyncio.to_thread(inner), LIMIT_S)
        assert within == "<ForwardGate closing, 1 inside>"
        assert not closing.done()
    await asyncio.wait_for(closing, LIMIT_S)


async def test_a_child_task_enters_again_and_may_outlive_its_parent() -> None:
    gate = ForwardGate()
    entered, may_end = asyncio.Event(), asyncio.Event()

    async def child() -> None:
        async with gate:
            entered.set()
            await may_end.wait()

    async with gate:
        closing = of_another(gate.close())
        await turns()
        task = asyncio.create_task(child())
        await asyncio.wait_for(entered.wait(), LIMIT_S)
        assert repr(gate) == "<ForwardGate closing, 1 inside>"
    # The parent is outside now, and has to wait like everybody else.
    gate.check_outside("update")
    again = asyncio.create_task(gate.__aenter__())
    await turns()
    assert repr(gate) == "<ForwardGate closing, 1 inside>"
    assert not again.done()
    assert not closing.done()
    may_end.set()
    await asyncio.wait_for(asyncio.gather(task, closing), LIMIT_S)
    again.cancel()


async def test_a_task_that_was_begun_in_a_pass_is_outside_once_the_pass_is_over() -> None:
    gate = ForwardGate()
    go_on = asyncio.Event()

    async def later() -> float:
        await go_on.wait()
        gate.check_outside("update")
        return await gate.close()

    async with gate:
        task = asyncio.create_task(later())
    go_on.set()
    assert await asyncio.wait_for(task, LIMIT_S)


async def test_two_gates_are_two() -> None:
    one, other = ForwardGate(), ForwardGate()
    async with one:
        other.check_outside("update")
        await other.close()
        other.open()
        async with other:
            with pytest.raises(RuntimeError, match="would wait for itself"):
                one.check_outside("update")
            async with one:
                assert (repr(one), repr(other)) == ("<ForwardGate open, 1 inside>",) * 2
        with pytest.raises(RuntimeError, match="would wait for itself"):
            one.check_outside("update")
    await one.close()


async def test_a_pass_of_a_thread_inside_that_of_a_task_leaves_its_own() -> None:
    """As a dependency that is entered and left by two worker threads of one request."""
    gate = ForwardGate()
    async with gate:
        await asyncio.to_thread(gate.__enter__)
        await asyncio.to_thread(leave, gate)
        with pytest.raises(RuntimeError, match="would wait for itself"):
            gate.check_outside("update")
        assert repr(gate) == "<ForwardGate open, 1 inside>"
    assert repr(gate) == "<ForwardGate open, 0 inside>"


async def test_to_close_the_gate_from_inside_is_refused() -> None:
    gate = ForwardGate()
    async with gate:
        with pytest.raises(IllegalCommand, match="asked for inside the gate"):
            await gate.close()
        assert repr(gate) == "<ForwardGate open, 1 inside>"


CHILDREN: dict[str, Callable[[Coroutine[Any, Any, object]], Awaitable[object]]] = {
    "task": asyncio.create_task,
    "wait_for": lambda update: asyncio.wait_for(update, LIMIT_S),
    "gather": lambda update: asyncio.gather(update),
    "thread": lambda update: asyncio.to_thread(asyncio.run, update),
}


@pytest.mark.parametrize("how", CHILDREN)
async def test_an_update_that_a_child_of_a_pass_asks_for_is_refused(
    tmp_path: Path, how: str
) -> None:
    b = checkpoint(tmp_path / "b", 2.0)
    async with HotSwap(filled(1.0)) as swap:
        async with swap.gate:
            with pytest.raises(RuntimeError, match="update inside the gate would wait for itself"):
                await CHILDREN[how](swap.update(b))
        assert (await asyncio.wait_for(swap.update(b), LIMIT_S)).stamp.epoch == 1


async def test_a_request_to_the_app_from_inside_is_refused_too(tmp_path: Path) -> None:
    """By a client in the same process, which runs the app in the task of the pass."""
    module, b = filled(1.0), checkpoint(tmp_path / "b", 2.0)
    swap = HotSwap(module, settings=Settings(allow_weight_update=True))
    transport = httpx.ASGITransport(swap.app)
    async with swap, httpx.AsyncClient(transport=transport, base_url="http://embed.test") as client:
        async with swap.gate:
            refused = await client.post("/update_weights_from_disk", json={"model_path": b})
            assert refused.status_code == 400
            assert "asked for inside the gate" in refused.text
            paused = await client.post("/pause_generation", json={})
            assert paused.status_code >= 400
            assert "asked for inside the gate" in paused.text
            assert output(module) == 16.0
        done = await client.post("/update_weights_from_disk", json={"model_path": b})
        assert done.json()["success"]
        assert swap.controller.machine.state == "serving"
        async with swap.gate:
            assert output(module) == 64.0


async def test_an_update_from_inside_by_way_of_the_controller_is_rejected(tmp_path: Path) -> None:
    b = checkpoint(tmp_path / "b", 2.0)
    async with HotSwap(filled(1.0)) as swap, swap.gate:
        with pytest.raises(UpdateRejected, match="asked for inside the gate"):
            await swap.controller.update(Update(source=b))


def test_sync_code_inside_the_gate_is_told_so(tmp_path: Path) -> None:
    b = checkpoint(tmp_path / "b", 2.0)
    with HotSwapThread(HotSwap(filled(1.0))) as swap:
        for call in (lambda: swap.update(b), swap.pause, swap.resume, swap.flush):
            with swap.gate, pytest.raises(RuntimeError, match="a command inside the gate"):
                call()
        assert swap.update(b).stamp.epoch == 1


async def test_a_busy_gate_forgets_passes_that_were_left_elsewhere() -> None:
    """Somebody is always inside; what enters and leaves beside it keeps no memory."""
    gate = ForwardGate()
    inside, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with gate:
            inside.set()
            assert may_end.wait(LIMIT_S)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert await asyncio.to_thread(inside.wait, LIMIT_S)
        for _ in range(20):
            contextvars.Context().run(on_a_thread, gate.__enter__)
            contextvars.Context().run(on_a_thread, lambda: leave(gate))
            assert repr(gate) == "<ForwardGate open, 1 inside>"
        may_end.set()
        holding.result(LIMIT_S)
    await gate.close()
