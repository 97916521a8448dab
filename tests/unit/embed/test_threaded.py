"""hotswap on a thread of its own: sync callers, and event loops that are not its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotswap.embed import HotSwap, HotSwapThread
from hotswap.errors import ShuttingDown, UpdateRejected
from hotswap.testing.fakes import Steps
from hotswap.types import PauseMode
from tests.unit.embed.modules import LIMIT_S, checkpoint, filled, output
from tests.unit.embed.test_hot_swap import fakes


def test_sync_code_updates_a_module_between_the_passes_of_its_threads(tmp_path: Path) -> None:
    module = filled(1.0)
    sources = [checkpoint(tmp_path / name, value) for name, value in (("b", 2.0), ("c", 3.0))]
    stop, seen = threading.Event(), set[float]()
    passed = threading.Semaphore(0)

    with HotSwapThread(HotSwap(module)) as swap, ThreadPoolExecutor(2) as pool:

        def serve() -> None:
            while not stop.is_set():
                with swap.gate:
                    seen.add(output(module))
                passed.release()

        threads = [pool.submit(serve) for _ in range(2)]
        try:
            for version, source in enumerate(sources):
                assert passed.acquire(timeout=LIMIT_S)
                assert swap.update(source, version=str(version)).stamp.epoch == version + 1
                # One pass of each thread may have ended before the update.
                for _ in range(4):
                    assert passed.acquire(timeout=LIMIT_S)
        finally:
            stop.set()
        for thread in threads:
            thread.result(LIMIT_S)
    assert seen == {16.0, 64.0, 144.0}


def test_pause_resume_flush_and_state(tmp_path: Path) -> None:
    with HotSwapThread(HotSwap(filled(1.0), flush=lambda: 3)) as swap:
        assert swap.pause().mode is PauseMode.WAIT
        assert swap.gate.closed
        assert str(swap.state) == "paused"
        assert swap.flush() == 3
        swap.resume()
        assert str(swap.state) == "serving"
        with pytest.raises(UpdateRejected):
            swap.update(str(tmp_path / "nowhere"))
        assert repr(swap).startswith("<HotSwapThread running <HotSwap serving")
    with pytest.raises(RuntimeError, match="inside its 'with' block"):
        swap.flush()


async def test_a_foreign_event_loop_awaits_an_update_and_runs_passes(tmp_path: Path) -> None:
    module, b = filled(1.0), checkpoint(tmp_path / "b", 2.0)
    swap = HotSwapThread(HotSwap(module))
    await asyncio.to_thread(swap.__enter__)
    try:
        async with swap.gate:
            assert output(module) == 16.0
            with pytest.raises(RuntimeError, match="would wait for itself"):
                await swap.update_async(b)
        with pytest.raises(RuntimeError, match="await update_async"):
            swap.update(b)
        report = await asyncio.wait_for(swap.update_async(b), LIMIT_S)
        assert report.tensors_applied == 2
        async with swap.gate:
            assert output(module) == 64.0
    finally:
        await asyncio.to_thread(swap.__exit__, None, None, None)


async def test_cancelled_on_a_foreign_loop_before_the_first_write_it_is_undone() -> None:
    module, steps = filled(1.0), Steps()
    with ThreadPoolExecutor(1) as pool:
        swap = HotSwapThread(HotSwap(module, strategies={"disk": fakes(steps, B=2.0)}))
        await asyncio.wrap_future(pool.submit(swap.__enter__))
        try:
            arrived = threading.Event()
            steps.act_at(0, arrived.set)
            steps.hold("open")
            update = asyncio.create_task(swap.update_async("B"))
            assert await asyncio.to_thread(arrived.wait, LIMIT_S)
            update.cancel()
            with pytest.raises(asyncio.CancelledError):
                await update
            assert (await swap.update_async("B")).stamp.epoch == 1
        finally:
            await asyncio.wrap_future(pool.submit(swap.__exit__, None, None, None))


def test_leaving_the_block_in_the_middle_of_an_update_drops_it() -> None:
    module, steps = filled(1.0), Steps()
    arrived = threading.Event()
    steps.act_at(0, arrived.set)
    steps.hold("open")
    with ThreadPoolExecutor(1) as pool:
        with HotSwapThread(HotSwap(module, strategies={"disk": fakes(steps, B=2.0)})) as swap:
            update = pool.submit(swap.update, "B")
            assert arrived.wait(LIMIT_S)
        with pytest.raises(ShuttingDown):
            update.result(LIMIT_S)
    with swap.gate:
        assert output(module) == 16.0
