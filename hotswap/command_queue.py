"""One command at a time, first come first served, with a bounded wait.

Rule: whoever has an :class:`Entry` is the only one who may begin a command on the
machine, until it releases the entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType

import anyio

from hotswap.errors import Busy, ShuttingDown
from hotswap.state import Command

__all__ = ["CommandQueue", "Entry", "OneAtATime"]


class Entry:
    """The right to run a command. Released once; releasing again does nothing."""

    def __init__(self, queue: CommandQueue) -> None:
        self._queue: CommandQueue | None = queue

    def release(self) -> None:
        """Let the next command run."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue._advance()

    def __enter__(self) -> Entry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class _Ticket:
    def __init__(self, command: Command) -> None:
        self.command = command
        self.called = anyio.Event()
        self.granted = False


class OneAtATime:
    """Lets one update at a time hold a checkpoint in host memory. Event-loop thread only.

    ``doing`` and ``still`` are words for the message of another use.
    """

    def __init__(
        self, *, wait_s: float, doing: str = "update", still: str = "being staged"
    ) -> None:
        self._wait_s = wait_s
        self._doing = doing
        self._still = still
        self._lock = anyio.Lock()

    def __repr__(self) -> str:
        return f"<OneAtATime {'taken' if self._lock.locked() else 'free'}>"

    @property
    def taken(self) -> bool:
        """Whether somebody has the turn."""
        return self._lock.locked()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the turn for the body. Raises: Busy after ``wait_s``."""
        await self._acquire()
        try:
            yield
        finally:
            self._lock.release()

    async def _acquire(self) -> None:
        with suppress(anyio.WouldBlock):
            self._lock.acquire_nowait()
            return
        with anyio.move_on_after(self._wait_s) as wait:
            await self._lock.acquire()
        if wait.cancelled_caught:
            raise Busy(
                f"{self._doing} waited {self._wait_s:g} s and another one is still {self._still}; "
                "retry when it has finished"
            )


class CommandQueue:
    """The FIFO of commands. Event-loop thread only."""

    def __init__(self, *, wait_s: float) -> None:
        self._wait_s = wait_s
        self._running: Command | None = None
        self._waiting: deque[_Ticket] = deque()
        self._closed = False
        self._finished = anyio.Event()

    def __repr__(self) -> str:
        return f"<CommandQueue running={self._running} waiting={len(self._waiting)}>"

    @property
    def wait_s(self) -> float:
        """How long a command waits for its turn, seconds."""
        return self._wait_s

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self._running is None

    @property
    def running(self) -> Command | None:
        """The command that holds the entry."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many commands wait for their turn."""
        return len(self._waiting)

    def enter_now(self, command: Command) -> Entry:
        """Take the entry without waiting. Raises: Busy when it is not free."""
        self._refuse_when_closed(command)
        if self._running is not None:
            raise Busy(
                f"{command} found {self._running} running, wanted an idle server; "
                "retry when it has finished"
            )
        self._running = command
        return Entry(self)

    async def enter(self, command: Command, *, front: bool = False) -> Entry:
        """Take the entry, after those that came earlier (before them with ``front``).

        A free entry is taken without giving way to other tasks. Raises: Busy
        after ``wait_s``, ShuttingDown when the queue closes.
        """
        self._refuse_when_closed(command)
        if self._running is None:
            return self.enter_now(command)
        ticket = _Ticket(command)
        if front:
            self._waiting.appendleft(ticket)
        else:
            self._waiting.append(ticket)
        try:
            with anyio.move_on_after(self._wait_s):
                await ticket.called.wait()
        except BaseException:
            self._leave(ticket)
            raise
        if ticket.granted:
            return Entry(self)
        self._leave(ticket)
        self._refuse_when_closed(command)
        raise Busy(
            f"{command} waited {self._wait_s:g} s and {self._running} still runs; "
            "retry when it has finished"
        )

    async def close(self) -> None:
        """Refuse everything from now on; return when the running command has ended."""
        self._closed = True
        for ticket in self._waiting:
            ticket.called.set()
        self._waiting.clear()
        if self._running is not None:
            await self._finished.wait()

    def _refuse_when_closed(self, command: Command) -> None:
        if self._closed:
            raise ShuttingDown(f"{command} refused: the server is shutting down; send it elsewhere")

    def _leave(self, ticket: _Ticket) -> None:
        if ticket.granted:
            self._advance()
        elif ticket in self._waiting:
            self._waiting.remove(ticket)

    def _advance(self) -> None:
        if self._waiting:
            ticket = self._waiting.popleft()
            self._running = ticket.command
            ticket.granted = True
            ticket.called.set()
            return
        self._running = None
        if self._closed:
            self._finished.set()
