"""The bytes of a request, on their way from the event loop to the thread that wants them.

Rules:

* They go by in order, once. At most ``WINDOW_BYTES`` lie here, and as long as they do the
  sender waits: nothing is buffered a second time.
* The event loop copies what comes straight to where it is wanted, which is less than waking
  a thread for it would cost. It never waits for memory: pages are found by the reader's
  thread, and only then does the event loop write to them.
* A reader never waits for ever: not for a sender that has gone, or that sends nothing or next
  to nothing for ``stall_s`` (:mod:`hotswap.push.pace`), and not while the server goes down. Nor
  once the request's task is cancelled, which waits for the reader before anybody could tell it.
"""

from __future__ import annotations

import asyncio
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np
from starlette.types import Message, Receive

from hotswap.errors import UpdateRejected
from hotswap.push.pace import Pace, silent

__all__ = ["WINDOW_BYTES", "Incoming"]

WINDOW_BYTES = 8 * 2**20
"""Bytes that may wait for the reader before the sender has to."""

_LOOK_S = 0.25
# Found at once: enough for numpy to let go of the interpreter lock meanwhile.
_FOUND_BYTES = 8 * 2**20
# Taken out of the window at once, and then copied without the lock.
_TAKEN_BYTES = 2**20


class Incoming:
    """Event-loop thread, but for :meth:`read_into` and :meth:`skip`: one other thread.

    ``closed`` says that the server goes down.
    """

    def __init__(
        self, receive: Receive, *, stall_s: float, closed: Callable[[], bool] = lambda: False
    ) -> None:
        self._receive = receive
        self._stall_s = stall_s
        self._closed = closed
        self._chunks: deque[memoryview] = deque()
        self._held_bytes = 0
        self._arrived = self._paced = 0
        self._pace = Pace(stall_s=stall_s)
        # Where bytes go at once: from _filled on up to _limit. None are held then.
        self._out = memoryview(b"")
        self._filled = self._limit = 0
        self._whole = False
        self._broken: str | None = None
        self._news = threading.Condition()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._room = asyncio.Event()

    def __repr__(self) -> str:
        state = self._broken or ("whole" if self._whole else "coming")
        return f"<Incoming {self._held_bytes} bytes held, {state}>"

    async def receive(self) -> Message:
        """The next message of the request, whose bytes are kept for the reader.

        Returns when there is room for more.
        """
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.end("the sender has gone")
            return message
        self._take(message.get("body", b""), more=message.get("more_body", False))
        while self._held_bytes > WINDOW_BYTES and self._broken is None:
            self._room.clear()
            await self._room.wait()
        return message

    async def first(self, count: int) -> bytes:
        """The first ``count`` bytes, and fewer only where there are no more.

        Before anybody reads on another thread. Raises: UpdateRejected when the sender stalls.
        """
        try:
            async with asyncio.timeout(self._stall_s):
                while self._held_bytes < count and not self._whole and self._broken is None:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        self.end("the sender has gone")
                    else:
                        body, more = message.get("body", b""), message.get("more_body", False)
                        self._take(body, more=more)
        except TimeoutError:
            raise UpdateRejected(silent(self._stall_s)) from None
        with self._news:
            return b"".join(self._taken(count))

    def end(self, reason: str) -> None:
        """Nothing more will be read or come: who waits is told ``reason``. Idempotent."""
        with self._news:
            self._broken = self._broken or reason
            self._chunks.clear()
            self._held_bytes = 0
            self._news.notify_all()
        self._room.set()

    def read_into(self, out: memoryview) -> None:
        """Fill ``out`` with the next bytes. Waits. Raises: OSError."""
        try:
            for start in range(0, len(out), _FOUND_BYTES):
                end = min(start + _FOUND_BYTES, len(out))
                _find_pages(out[start:end])
                self._fill(out, end)
            with self._news:
                self._wait(lambda: self._filled == len(out))
        finally:
            with self._news:
                self._out = memoryview(b"")
                self._filled = self._limit = 0

    def skip(self, count: int) -> None:
        """Let the next ``count`` bytes go by. Waits. Raises: OSError."""
        while count:
            with self._news:
                self._wait(lambda: bool(self._chunks))
                count -= sum(map(len, self._taken(count)))
            self._make_room()

    @property
    def rest(self) -> bool:
        """Whether bytes are left, or may still come."""
        return self._held_bytes > 0 or not self._whole

    def _take(self, body: bytes, *, more: bool) -> None:
        with self._news:
            self._arrived += len(body)
            rest = memoryview(body)
            part = min(self._limit - self._filled, len(rest))
            if part > 0:
                self._out[self._filled : self._filled + part] = rest[:part]
                self._filled += part
                rest = rest[part:]
            if len(rest) and self._broken is None:
                self._chunks.append(rest)
                self._held_bytes += len(rest)
            self._whole = self._whole or not more
            if self._filled >= self._limit or self._whole:
                self._news.notify_all()

    def _fill(self, out: memoryview, end: int) -> None:
        """Copy what is held, up to byte ``end`` of ``out``; what comes later goes there at once."""
        while True:
            with self._news:
                held = self._taken(min(end - self._filled, _TAKEN_BYTES))
                if not held:
                    self._out, self._limit = out, end
                    return
            # Without the lock, which the event loop would wait for.
            for chunk in held:
                out[self._filled : self._filled + len(chunk)] = chunk
                self._filled += len(chunk)
            self._make_room()

    def _wait(self, done: Callable[[], bool]) -> None:
        """Return once ``done``; under the lock. Raises: OSError."""
        while not done():
            if self._broken is not None:
                raise OSError(f"the body ends early: {self._broken}")
            if self._whole:
                raise OSError("the body ends early: it has fewer bytes than its header says")
            if self._closed():
                raise OSError("the server is shutting down")
            if self._task is not None and self._task.cancelling():
                raise OSError("the body ends early: the request was cancelled")
            if (fault := self._pace.fault) is not None:
                raise OSError(fault)
            self._pace.came(self._arrived - self._paced)
            began, seen = time.monotonic(), self._arrived
            self._news.wait(_LOOK_S)
            # A machine that has no time for this thread is not the sender's fault.
            waited_s = min(time.monotonic() - began, _LOOK_S)
            self._pace.waited(waited_s, came_bytes=self._arrived - seen)
            self._paced = self._arrived

    def _taken(self, count: int) -> list[memoryview]:
        """The first ``count`` bytes that are held, or all of them. Under the lock."""
        taken = list[memoryview]()
        while count and self._chunks:
            chunk = self._chunks.popleft()
            if len(chunk) > count:
                self._chunks.appendleft(chunk[count:])
                chunk = chunk[:count]
            taken.append(chunk)
            count -= len(chunk)
            self._held_bytes -= len(chunk)
        return taken

    def _make_room(self) -> None:
        if self._held_bytes <= WINDOW_BYTES // 2:
            self._loop.call_soon_threadsafe(self._room.set)


def _find_pages(out: memoryview) -> None:
    """Have the system find the memory of ``out`` now, which is about to be overwritten."""
    np.frombuffer(out, dtype=np.uint8)[:: mmap.PAGESIZE] = 0
