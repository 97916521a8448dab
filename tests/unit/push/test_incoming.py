"""Bytes on their way from a request to the thread that wants them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest

from hotswap.errors import UpdateRejected
from hotswap.push import Incoming
from hotswap.push.incoming import WINDOW_BYTES
from hotswap.uninterrupted import on_worker_thread


class Sender:
    """The other end: messages in order, then nothing until told."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def send(self, body: bytes = b"", *, more: bool = True) -> None:
        self.messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})

    def incoming(
        self, *, stall_s: float = 30.0, closed: Callable[[], bool] = lambda: False
    ) -> Incoming:
        return Incoming(self.messages.get, stall_s=stall_s, closed=closed)


async def read(incoming: Incoming, count: int) -> bytes:
    out = bytearray(count)
    await anyio.to_thread.run_sync(incoming.read_into, memoryview(out))
    return bytes(out)


async def test_bytes_come_in_order_however_they_are_cut() -> None:
    sender = Sender()
    incoming = sender.incoming()
    whole = bytes(range(200))
    for start in range(0, 200, 7):
        sender.send(whole[start : start + 7])
    sender.send(more=False)
    assert await incoming.first(10) == whole[:10]
    for _ in range(28):
        await incoming.receive()
    assert await read(incoming, 33) == whole[10:43]
    await anyio.to_thread.run_sync(incoming.skip, 7)
    assert await read(incoming, 150) == whole[50:]
    assert not incoming.rest
    assert await read(incoming, 0) == b""
    with pytest.raises(OSError, match="fewer bytes than its header says"):
        await read(incoming, 1)
    assert repr(incoming) == "<Incoming 0 bytes held, whole>"


async def test_a_sender_waits_while_as_much_lies_here_as_may() -> None:
    sender = Sender()
    incoming = sender.incoming()
    sender.send(bytes(WINDOW_BYTES))
    sender.send(b"x")
    await incoming.receive()
    more = asyncio.get_running_loop().create_task(incoming.receive())
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    assert not more.done()
    await read(incoming, WINDOW_BYTES)
    async with asyncio.timeout(30):
        await more
    assert await read(incoming, 1) == b"x"


@pytest.mark.parametrize("before", [0, 1, 9])
async def test_more_than_is_taken_at_once_comes_whole(before: int) -> None:
    """Whether it lies here when it is asked for, or comes while memory for it is found."""
    sender = Sender()
    incoming = sender.incoming()
    whole = random.Random(before).randbytes(18 * 2**20 + 5)
    pieces = [whole[start : start + 2**20] for start in range(0, len(whole), 2**20)]
    for piece in pieces:
        sender.send(piece)
    sender.send(more=False)
    for _ in range(min(before, WINDOW_BYTES // 2**20)):
        await incoming.receive()
    reading = asyncio.get_running_loop().create_task(read(incoming, len(whole)))
    async with asyncio.timeout(30):
        while incoming.rest:
            await incoming.receive()
            if sender.messages.empty():
                break
        assert await reading == whole
    assert not incoming.rest


@pytest.mark.parametrize("what", ["leaves", "ends", "shuts down", "stalls"])
async def test_a_reader_is_told_when_nothing_more_comes(what: str) -> None:
    sender, down = Sender(), list[bool]()
    incoming = sender.incoming(stall_s=0.2 if what == "stalls" else 30.0, closed=lambda: bool(down))
    sender.send(b"ab")
    await incoming.receive()
    wanted = {
        "leaves": "the sender has gone",
        "ends": "given up",
        "shuts down": "shutting down",
        "stalls": r"nothing for 0\.2 s",
    }
    reading = asyncio.get_running_loop().create_task(read(incoming, 5))
    await anyio.lowlevel.checkpoint()
    if what == "leaves":
        sender.leave()
        assert (await incoming.receive())["type"] == "http.disconnect"
    elif what == "ends":
        incoming.end("given up")
        incoming.end("again")
    elif what == "shuts down":
        down.append(True)
    with pytest.raises(OSError, match=wanted[what]):
        await asyncio.wait_for(reading, 30)


async def test_a_start_that_does_not_come_is_told_of() -> None:
    sender = Sender()
    with pytest.raises(UpdateRejected, match=r"nothing for 0\.05 s"):
        await sender.incoming(stall_s=0.05).first(8)
    sender.send(b"abc", more=False)
    assert await sender.incoming().first(8) == b"abc"
    sender.leave()
    gone = sender.incoming()
    assert await gone.first(8) == b""
    assert repr(gone) == "<Incoming 0 bytes held, the sender has gone>"
    # Bytes of somebody who has been given up are nobody's.
    sender.send(b"late")
    await gone.receive()
    assert repr(gone).startswith("<Incoming 0 bytes")


async def test_a_reader_does_not_outlast_its_request() -> None:
    """Who cancels the task waits for the reader, which would wait for a body that nobody takes."""
    sender, reading = Sender(), threading.Event()
    sender.send(b"half")

    async def request() -> None:
        incoming = sender.incoming(stall_s=3600)

        def work() -> None:
            reading.set()
            incoming.read_into(memoryview(bytearray(100)))

        await incoming.receive()
        await on_worker_thread(work)

    task = asyncio.create_task(request())
    await asyncio.to_thread(reading.wait)
    task.cancel()
    with pytest.raises(OSError, match="ends early: the request was cancelled"):
        await task
