"""First come, first served, with a bounded wait."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from hotswap.command_queue import CommandQueue
from hotswap.errors import Busy
from hotswap.state import Command


async def take(queue: CommandQueue, name: str, log: list[str], *, front: bool = False) -> None:
    with await queue.enter(Command.UPDATE, front=front):
        log.append(name)


async def until_waiting(queue: CommandQueue, count: int) -> None:
    while queue.waiting < count:
        await anyio.lowlevel.checkpoint()


async def test_entries_are_given_in_the_order_of_asking() -> None:
    queue, log = CommandQueue(wait_s=30), list[str]()
    first = await queue.enter(Command.PAUSE)
    async with anyio.create_task_group() as tasks:
        for number, name in enumerate(["one", "two", "three"], start=1):
            tasks.start_soon(take, queue, name, log)
            await until_waiting(queue, number)
        assert (queue.running, queue.idle) == (Command.PAUSE, False)
        first.release()
    assert log == ["one", "two", "three"]
    assert queue.idle


async def test_front_comes_before_those_who_wait() -> None:
    queue, log = CommandQueue(wait_s=30), list[str]()
    first = await queue.enter(Command.PAUSE)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, queue, "later", log)
        await until_waiting(queue, 1)
        async with anyio.create_task_group() as front:
            front.start_soon(lambda: take(queue, "front", log, front=True))
            await until_waiting(queue, 2)
            first.release()
    assert log == ["front", "later"]


async def test_wait_is_bounded_and_the_error_names_what_runs() -> None:
    queue = CommandQueue(wait_s=0)
    with await queue.enter(Command.PAUSE):
        with pytest.raises(Busy, match="update waited 0 s and pause still runs") as caught:
            await queue.enter(Command.UPDATE)
        assert caught.value.retryable
        assert queue.waiting == 0
    assert queue.idle


async def test_enter_now_never_waits() -> None:
    queue = CommandQueue(wait_s=30)
    with queue.enter_now(Command.FLUSH), pytest.raises(Busy, match="flush found flush running"):
        queue.enter_now(Command.FLUSH)
    assert queue.idle


async def test_releasing_twice_is_releasing_once() -> None:
    queue = CommandQueue(wait_s=30)
    entry = queue.enter_now(Command.FLUSH)
    entry.release()
    other = queue.enter_now(Command.PAUSE)
    entry.release()
    assert queue.running is Command.PAUSE
    other.release()


async def test_cancelled_waiter_leaves_the_line() -> None:
    queue, log = CommandQueue(wait_s=30), list[str]()
    first = await queue.enter(Command.PAUSE)
    gone = asyncio.ensure_future(take(queue, "gone", log))
    await until_waiting(queue, 1)
    stays = asyncio.ensure_future(take(queue, "stays", log))
    await until_waiting(queue, 2)
    gone.cancel()
    await asyncio.wait([gone])
    assert queue.waiting == 1
    first.release()
    await stays
    assert log == ["stays"]
    assert queue.idle


async def test_waiter_cancelled_as_its_turn_comes_passes_the_turn_on() -> None:
    queue, log = CommandQueue(wait_s=30), list[str]()
    first = await queue.enter(Command.PAUSE)
    gone = asyncio.ensure_future(take(queue, "gone", log))
    await until_waiting(queue, 1)
    stays = asyncio.ensure_future(take(queue, "stays", log))
    await until_waiting(queue, 2)
    first.release()  # gone has been called and has not run yet
    gone.cancel()
    await asyncio.wait([gone, stays])
    assert gone.cancelled()
    assert log == ["stays"]
    assert queue.idle


async def test_closing_refuses_those_who_wait_and_waits_for_the_one_that_runs() -> None:
    queue = CommandQueue(wait_s=30)
    entry = await queue.enter(Command.SWAP)
    waiter = asyncio.ensure_future(queue.enter(Command.PAUSE))
    await until_waiting(queue, 1)
    closing = asyncio.ensure_future(queue.close())
    with pytest.raises(Busy, match="shutting down"):
        await waiter
    assert not closing.done()
    with pytest.raises(Busy, match="shutting down"):
        await queue.enter(Command.PAUSE)
    with pytest.raises(Busy, match="shutting down"):
        queue.enter_now(Command.FLUSH)
    entry.release()
    await closing
    await queue.close()


async def test_repr() -> None:
    queue = CommandQueue(wait_s=1)
    with queue.enter_now(Command.FLUSH):
        assert repr(queue) == "<CommandQueue running=flush waiting=0>"
