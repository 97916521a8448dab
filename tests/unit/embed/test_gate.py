"""The gate: an update never overlaps a forward pass, on threads and in tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from hotswap.embed import ForwardGate
from hotswap.errors import Overtaken, WeightsNotWhole
from tests.unit.embed.modules import LIMIT_S, of_another


class Pass:
    """A forward pass on a thread: inside once ``begun``, until ``end`` is called."""

    def __init__(self, gate: ForwardGate, pool: ThreadPoolExecutor) -> None:
        self._gate = gate
        self.begun = threading.Event()
        self._may_end = threading.Event()
        self.done: Future[None] = pool.submit(self._run)

    def _run(self) -> None:
        with self._gate:
            self.begun.set()
            assert self._may_end.wait(LIMIT_S)

    async def is_inside(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, LIMIT_S)

    async def end(self) -> None:
        self._may_end.set()
        await asyncio.wait_for(asyncio.wrap_future(self.done), LIMIT_S)


async def turns() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_closing_waits_for_passes_of_every_thread_and_lets_nobody_in() -> None:
    gate = ForwardGate()
    with ThreadPoolExecutor(3) as pool:
        first, second = Pass(gate, pool), Pass(gate, pool)
        await first.is_inside()
        await second.is_inside()
        closing = asyncio.create_task(gate.close())
        await turns()
        assert repr(gate) == "<ForwardGate closing, 2 inside>"
        late = Pass(gate, pool)
        await first.end()
        await turns()
        assert not closing.done()
        await second.end()
        await asyncio.wait_for(closing, LIMIT_S)
        assert gate.closed
        assert repr(gate) == "<ForwardGate closed, 0 inside>"
        assert not late.begun.is_set()

        gate.open()
        await late.is_inside()
        assert repr(gate) == "<ForwardGate open, 1 inside>"
        await late.end()


async def test_tasks_come_in_and_wait_without_stopping_their_loop() -> None:
    gate = ForwardGate()
    await gate.close()
    order: list[str] = []

    async def infer(name: str) -> None:
        async with gate:
            order.append(name)

    tasks = [asyncio.create_task(infer(name)) for name in ("a", "b")]
    await turns()
    assert order == []
    gate.open()
    await asyncio.wait_for(asyncio.gather(*tasks), LIMIT_S)
    assert order == ["a", "b"]


async def test_a_task_that_gives_up_waiting_leaves_nothing_behind() -> None:
    gate = ForwardGate()
    await gate.close()
    entered = asyncio.create_task(gate.__aenter__())
    await turns()
    entered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entered
    gate.open()
    assert repr(gate) == "<ForwardGate open, 0 inside>"
    await gate.close()


async def test_a_task_of_another_loop_waits_at_the_same_gate() -> None:
    gate = ForwardGate()
    await gate.close()
    arrived = threading.Event()

    async def infer() -> str:
        asyncio.get_running_loop().call_soon(arrived.set)
        async with gate:
            return repr(gate)

    other = asyncio.create_task(asyncio.to_thread(asyncio.run, infer()))
    assert await asyncio.to_thread(arrived.wait, LIMIT_S)
    assert not other.done()
    gate.open()
    assert await asyncio.wait_for(other, LIMIT_S) == "<ForwardGate open, 1 inside>"


async def test_who_is_inside_may_enter_again_while_the_gate_closes() -> None:
    gate = ForwardGate()
    async with gate:
        closing = of_another(gate.close())
        await turns()
        async with gate:
            assert repr(gate) == "<ForwardGate closing, 1 inside>"
        await turns()
        assert not closing.done()
    await asyncio.wait_for(closing, LIMIT_S)


async def test_a_cancelled_closing_leaves_the_gate_as_it_was() -> None:
    gate = ForwardGate()
    async with gate:
        closing = of_another(gate.close())
        await turns()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert repr(gate) == "<ForwardGate open, 1 inside>"


async def test_two_closings_and_one_is_given_up() -> None:
    gate = ForwardGate()
    async with gate:
        given_up, other = (of_another(gate.close()) for _ in range(2))
        await turns()
        given_up.cancel()
        await asyncio.wait([given_up])
        assert repr(gate) == "<ForwardGate closing, 1 inside>"
    await asyncio.wait_for(other, LIMIT_S)
    assert gate.closed


async def test_opening_overtakes_a_closing() -> None:
    gate = ForwardGate()
    async with gate:
        closing = of_another(gate.close())
        await turns()
        gate.open()
        with pytest.raises(Overtaken, match="opened while it was being closed"):
            await closing
        assert repr(gate) == "<ForwardGate open, 1 inside>"


async def test_closing_returns_when_the_last_pass_ended() -> None:
    gate = ForwardGate()
    async with gate:
        closing = of_another(gate.close())
        await turns()
        begun = asyncio.get_running_loop().time()
    assert await closing >= begun
    gate.open()
    idle = asyncio.get_running_loop().time()
    assert await gate.close() >= idle


def not_whole() -> WeightsNotWhole:
    return WeightsNotWhole("torn by the test")


async def test_a_gate_that_refuses_raises_to_those_who_come_and_those_who_wait() -> None:
    gate = ForwardGate()
    await gate.close()
    with ThreadPoolExecutor(1) as pool:
        waiting = Pass(gate, pool)
        task = asyncio.create_task(gate.__aenter__())
        await turns()
        gate.refuse(not_whole)
        with pytest.raises(WeightsNotWhole, match="torn by the test"):
            await asyncio.wrap_future(waiting.done)
        with pytest.raises(WeightsNotWhole):
            await task
        gate.open()
        with pytest.raises(WeightsNotWhole):
            await gate.__aenter__()
        gate.refuse(None)
        async with gate:
            assert repr(gate) == "<ForwardGate open, 1 inside>"


async def test_a_thread_with_an_event_loop_is_told_to_write_async_with() -> None:
    gate = ForwardGate()
    with pytest.raises(RuntimeError, match="write 'async with gate'"):
        gate.__enter__()
    assert repr(gate) == "<ForwardGate open, 0 inside>"


async def test_who_is_inside_is_told_that_it_would_wait_for_itself() -> None:
    gate = ForwardGate()
    gate.check_outside("update")
    async with gate:
        with pytest.raises(RuntimeError, match="update inside the gate would wait for itself"):
            gate.check_outside("update")


def test_a_thread_inside_is_told_so_too() -> None:
    gate = ForwardGate()
    with gate, pytest.raises(RuntimeError, match="leave the gate first"):
        gate.check_outside("update")


def test_threads_and_closings_never_meet() -> None:
    """Four threads of passes against twenty closings: nobody is inside a closed gate."""
    gate = ForwardGate()
    stop, met = threading.Event(), list[str]()
    passed = threading.Semaphore(0)

    def run_passes() -> None:
        while not stop.is_set():
            with gate:
                if gate.closed:
                    met.append(repr(gate))
            passed.release()

    async def close_often(closed: Callable[[], object]) -> None:
        for _ in range(20):
            await gate.close()
            closed()
            gate.open()
            # Somebody gets in between two closings.
            assert await asyncio.to_thread(passed.acquire, timeout=LIMIT_S)

    def nobody_is_inside() -> None:
        if not repr(gate).endswith(" 0 inside>"):
            met.append(repr(gate))

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(run_passes) for _ in range(4)]
        try:
            asyncio.run(close_often(nobody_is_inside))
        finally:
            stop.set()
            gate.open()
        for thread in running:
            thread.result(LIMIT_S)
    assert met == []
