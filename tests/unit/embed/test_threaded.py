"""hotswap on a thread of its own: sync callers, and event loops that are not its own."""

from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal

from hotswap.embed import HotSwap, HotSwapThread
from hotswap.errors import ShuttingDown, UpdateRejected
from hotswap.testing.fakes import Steps
from hotswap.types import PauseMode
from hotswap.weights.target import WeightTarget
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
    swap = HotSwapThread(HotSwap(filled(1.0), flush=lambda: 3))
    with pytest.raises(RuntimeError, match="inside its 'with' block"):
        swap.flush()
    with swap:
        assert swap.pause().mode is PauseMode.WAIT
        assert swap.gate.closed
        assert str(swap.state) == "paused"
        assert swap.flush() == 3
        swap.resume()
        assert str(swap.state) == "serving"
        with pytest.raises(UpdateRejected):
            swap.update(str(tmp_path / "nowhere"))
        assert repr(swap).startswith("<HotSwapThread running <HotSwap serving")
    with pytest.raises(ShuttingDown, match="'with' block is being left"):
        swap.flush()


def test_who_calls_while_the_block_is_being_left_is_told_so() -> None:
    """While a commit is still being finished, and the other thread takes no call any more."""
    writing, may_end, told = threading.Event(), threading.Event(), list[str]()
    target = WeightTarget(filled(1.0))

    def finish() -> None:
        writing.set()
        assert may_end.wait(LIMIT_S)

    target.after_load(finish)
    with ThreadPoolExecutor(2) as pool:
        swap = HotSwapThread(HotSwap(target, strategies={"disk": fakes(Steps(), B=2.0)}))
        swap.__enter__()
        update = pool.submit(swap.update, "B")
        assert writing.wait(LIMIT_S)
        leaving = pool.submit(swap.__exit__, None, None, None)
        try:
            while not told:
                try:
                    # Until then, a call comes in and is refused by the controller.
                    swap.update("B")
                except ShuttingDown as error:
                    told.append(str(error))
            for call in (swap.flush, swap.resume, swap.pause):
                with pytest.raises(ShuttingDown):
                    call()
        finally:
            may_end.set()
        leaving.result(LIMIT_S)
        assert update.result(LIMIT_S).stamp.epoch == 1


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


class Interrupted:
    """Sends the main thread a Ctrl-C once ``arrived`` is set."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.sent = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self.arrived.set()
        self._thread.join()

    def _run(self) -> None:
        assert self.arrived.wait(LIMIT_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        self.sent.set()


def test_a_ctrl_c_before_the_first_write_undoes_the_update_and_then_raises() -> None:
    module, steps, ctrl_c = filled(1.0), Steps(), Interrupted()
    steps.act_at(0, ctrl_c.arrived.set)
    steps.hold("open")
    with HotSwapThread(HotSwap(module, strategies={"disk": fakes(steps, B=2.0)})) as swap:
        with ctrl_c, pytest.raises(KeyboardInterrupt):
            swap.update("B")
        # It is over: nothing is written after the caller has been told.
        assert str(swap.state) == "serving"
        assert repr(swap.gate) == "<ForwardGate open, 0 inside>"
        assert output(module) == 16.0
        assert swap.update("B").stamp.epoch == 1
    assert output(module) == 64.0


@pytest.mark.parametrize("asked", [False, True], ids=["before", "after"])
def test_a_ctrl_c_while_the_other_thread_is_being_asked_leaves_nothing_running(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, steps = filled(1.0), Steps()
    if asked:
        steps.hold("open")
    ask = BlockingPortal.start_task_soon

    def interrupted(portal: BlockingPortal, *call: Any) -> Any:
        monkeypatch.undo()
        if asked:
            ask(portal, *call)
        raise KeyboardInterrupt

    with HotSwapThread(HotSwap(module, strategies={"disk": fakes(steps, B=2.0)})) as swap:
        monkeypatch.setattr(BlockingPortal, "start_task_soon", interrupted)
        with pytest.raises(KeyboardInterrupt):
            swap.update("B")
        assert repr(swap.gate) == "<ForwardGate open, 0 inside>"
        assert swap.update("B").stamp.epoch == 1
    assert output(module) == 64.0


def test_a_ctrl_c_after_the_first_write_raises_once_the_update_has_ended(tmp_path: Path) -> None:
    module, b, ctrl_c = filled(1.0), checkpoint(tmp_path / "b", 2.0), Interrupted()
    target, may_end = WeightTarget(module), threading.Event()

    def finish() -> None:
        ctrl_c.arrived.set()
        assert may_end.wait(LIMIT_S)

    target.after_load(finish)
    with HotSwapThread(HotSwap(target)) as swap, ThreadPoolExecutor(1) as pool:

        def let_end() -> None:
            # Once the caller has been interrupted, and waits for the end.
            assert ctrl_c.sent.wait(LIMIT_S)
            may_end.set()

        letting = pool.submit(let_end)
        with ctrl_c, pytest.raises(KeyboardInterrupt):
            swap.update(b)
        letting.result(LIMIT_S)
        assert str(swap.state) == "serving"
        assert swap.gate.closed is False
        assert output(module) == 64.0


async def test_cancelled_on_a_foreign_loop_after_the_first_write_it_ends_first(
    tmp_path: Path,
) -> None:
    module, b = filled(1.0), checkpoint(tmp_path / "b", 2.0)
    target, writing, may_end = WeightTarget(module), threading.Event(), threading.Event()

    def finish() -> None:
        writing.set()
        assert may_end.wait(LIMIT_S)

    target.after_load(finish)
    with ThreadPoolExecutor(1) as pool:
        swap = HotSwapThread(HotSwap(target))
        await asyncio.wrap_future(pool.submit(swap.__enter__))
        try:
            update = asyncio.create_task(swap.update_async(b))
            assert await asyncio.to_thread(writing.wait, LIMIT_S)
            update.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not update.done()
            may_end.set()
            with pytest.raises(asyncio.CancelledError):
                await update
            assert str(swap.state) == "serving"
            assert output(module) == 64.0
        finally:
            may_end.set()
            await asyncio.wrap_future(pool.submit(swap.__exit__, None, None, None))
