"""Work that runs to its end, whoever stops waiting."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from hotswap.testing.fakes import Hold
from hotswap.uninterrupted import on_worker_thread, uninterrupted


async def held(hold: Hold, log: list[str]) -> str:
    await hold.wait()
    log.append("done")
    return "result"


async def test_returns_and_raises_what_the_work_does() -> None:
    hold = Hold()
    hold.release()
    assert await uninterrupted(held(hold, [])) == "result"

    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await uninterrupted(fail())


async def test_cancelled_task_waits_for_the_end_and_is_then_cancelled() -> None:
    hold, log = Hold(), list[str]()
    task = asyncio.ensure_future(uninterrupted(held(hold, log)))
    await hold.arrived.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.wait([task], timeout=0)
        assert not task.done()
    hold.release()
    await asyncio.wait([task])
    assert task.cancelled()
    assert log == ["done"]


async def test_cancelled_scope_lets_the_result_through() -> None:
    hold, log, results = Hold(), list[str](), list[str]()

    async def wait() -> None:
        results.append(await uninterrupted(held(hold, log)))
        await anyio.lowlevel.checkpoint()
        raise AssertionError("the next checkpoint should have been cancelled")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await hold.arrived.wait()
        tasks.cancel_scope.cancel()
        hold.release()
    assert log == ["done"]
    assert results == ["result"]


async def test_timeout_around_it_is_kept_after_the_end() -> None:
    hold, log = Hold(), list[str]()

    async def release_later(task: asyncio.Task[str]) -> None:
        while not task.cancelling():
            await anyio.lowlevel.checkpoint()
        hold.release()

    async def bounded() -> str:
        async with asyncio.timeout(0):
            return await uninterrupted(held(hold, log))

    task = asyncio.ensure_future(bounded())
    await release_later(task)
    with pytest.raises(TimeoutError):
        await task
    assert log == ["done"]


@pytest.mark.parametrize("way", ["scope", "task"])
async def test_worker_thread_has_ended_before_a_cancelled_caller_leaves(way: str) -> None:
    started, go, ended = anyio.Event(), threading.Event(), list[bool]()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(started.set)
        go.wait()
        ended.append(True)

    async def call(scope: anyio.CancelScope) -> None:
        with scope:
            await on_worker_thread(work)
            raise AssertionError("a cancelled caller went on")

    scope = anyio.CancelScope()
    task = asyncio.ensure_future(call(scope))
    await started.wait()
    if way == "scope":
        scope.cancel()
    else:
        task.cancel()
    await asyncio.wait([task], timeout=0)
    assert not task.done()
    go.set()
    await asyncio.wait([task])
    assert ended == [True]
    assert task.cancelled() is (way == "task")
    if way == "scope":
        task.result()
