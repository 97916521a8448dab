"""The bytes of a request, on their way from the event loop to the thread that wants them.

Rules:

* They go by in order, once. At most ``WINDOW_BYTES`` lie here, and as long as they do the
  sender waits: nothing is buffered a second time.
* A reader never waits for ever: not for a sender that has gone, or that sends nothing or next
  to nothing for ``stall_s`` (:mod:`hotswap.push.pace`), and not while the server goes down.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable

from starlette.types import Message, Receive

from hotswap.errors import UpdateRejected
from hotswap.push.pace import Pace, silent

__all__ = ["WINDOW_BYTES", "Incoming"]

WINDOW_BYTES = 8 * 2**20
"""Bytes that may wait for the reader before the sender has to."""

_LOOK_S = 0.25


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
        self._target: memoryview | None = None
        self._whole = False
        self._broken: str | None = None
        self._news = threading.Condition()
        self._loop = asyncio.get_running_loop()
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
        taken = bytearray(min(count, self._held_bytes))
        with self._news:
            self._copy_held(memoryview(taken))
        return bytes(taken)

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
        with self._news:
            out = out[self._copy_held(out) :]
            self._make_room()
            if not len(out):
                return
            # What comes now goes there at once: a thread that is woken for each piece would
            # have the event loop wait for the interpreter lock as often.
            self._target = out
            try:
                self._wait(lambda: self._target is None)
            finally:
                self._target = None

    def skip(self, count: int) -> None:
        """Let the next ``count`` bytes go by. Waits. Raises: OSError."""
        while count:
            with self._news:
                self._wait(lambda: bool(self._chunks))
                passed = min(count, len(self._chunks[0]))
                self._drop(passed)
            count -= passed
            self._make_room()

    @property
    def rest(self) -> bool:
        """Whether bytes are left, or may still come."""
        return self._held_bytes > 0 or not self._whole

    def _take(self, body: bytes, *, more: bool) -> None:
        with self._news:
            self._arrived += len(body)
            rest = memoryview(body)
            if self._target is not None:
                part = min(len(self._target), len(rest))
                self._target[:part] = rest[:part]
                self._target, rest = self._target[part:] or None, rest[part:]
            if len(rest) and self._broken is None:
                self._chunks.append(rest)
                self._held_bytes += len(rest)
            self._whole = self._whole or not more
            if self._target is None or self._whole:
                self._news.notify_all()

    def _wait(self, done: Callable[[], bool]) -> None:
        """Return once ``done``; under the lock. Raises: OSError."""
        while not done():
            if self._broken is not None:
                raise OSError(f"the body ends early: {self._broken}")
            if self._whole:
                raise OSError("the body ends early: it has fewer bytes than its header says")
            if self._closed():
                raise OSError("the server is shutting down")
            if (fault := self._pace.fault) is not None:
                raise OSError(fault)
            self._pace.came(self._arrived - self._paced)
            began, seen = time.monotonic(), self._arrived
            self._news.wait(_LOOK_S)
            # A machine that has no time for this thread is not the sender's fault.
            waited_s = min(time.monotonic() - began, _LOOK_S)
            self._pace.waited(waited_s, came_bytes=self._arrived - seen)
            self._paced = self._arrived

    def _copy_held(self, out: memoryview) -> int:
        """Fill ``out`` as far as bytes are held; how far that was. Under the lock."""
        done = 0
        while done < len(out) and self._chunks:
            part = min(len(out) - done, len(self._chunks[0]))
            out[done : done + part] = self._chunks[0][:part]
            self._drop(part)
            done += part
        return done

    def _drop(self, count: int) -> None:
        """Forget the first ``count`` bytes of the first chunk. Under the lock."""
        self._held_bytes -= count
        if count == len(self._chunks[0]):
            self._chunks.popleft()
        else:
            self._chunks[0] = self._chunks[0][count:]

    def _make_room(self) -> None:
        if self._held_bytes <= WINDOW_BYTES // 2:
            self._loop.call_soon_threadsafe(self._room.set)
