"""The engine's one thread: commands from a mailbox, and forward passes between them.

Rules:

* Whatever touches the model, its KV or its weights runs here, one thing at a time.
* Commands run in the order in which they were posted, never during a forward pass.
* Whoever posts gets an answer, also when the thread ends first.
* A command that ends in any way has failed, and the thread goes on: it may run a plug-in's code.
* The thread keeps no process alive: one that nobody closed is closed at exit.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import anyio

from hotswap.foreign import on_a_thread

__all__ = ["EngineLoop", "Steps"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_PATIENCE_AT_EXIT_S = 10.0
_started: WeakSet[EngineLoop] = WeakSet()


@atexit.register
def _close_the_rest() -> None:
    # A daemon thread that is still inside torch while the interpreter goes may crash.
    for loop in list(_started):
        loop.close(patience_s=_PATIENCE_AT_EXIT_S)


# Locks of a forked child may be held by threads that it does not have.
os.register_at_fork(after_in_child=_started.clear)


class Steps(Protocol):
    """What the thread drives. All of it is called on the engine's thread."""

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do something."""
        ...

    def step(self) -> None:
        """Do a bounded piece of work."""
        ...

    def publish(self) -> None:
        """Send out what commands and steps have produced."""
        ...

    def shut(self, error: BaseException | None) -> None:
        """The thread ends: by ``close``, or of ``error``."""
        ...


class EngineLoop:
    """Owns the thread. ``post`` and ``call`` work from any thread, before ``start`` too."""

    def __init__(self, steps: Steps, *, name: str = "hotswap-engine") -> None:
        self._steps = steps
        self._mail: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __repr__(self) -> str:
        return f"<EngineLoop {'alive' if self.alive else 'not running'}>"

    @property
    def alive(self) -> bool:
        """Whether the thread runs and takes commands."""
        return self._thread.is_alive() and not self._is_over

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()
        _started.add(self)

    def close(self, *, patience_s: float | None = None) -> None:
        """Run what has been posted, end, and wait for the thread. Blocks; idempotent.

        ``patience_s`` bounds the wait; None waits as long as it takes.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.ident is None:
            self._finish(None)
        elif self._thread is not threading.current_thread():
            self._thread.join(patience_s)

    def post(self, work: Callable[[], _T]) -> Future[_T]:
        """Run ``work`` between two forward passes; cancel the future to give it up.

        Raises: RuntimeError when the thread has ended.
        """
        future: Future[_T] = Future()
        with self._changed:
            if self._is_over:
                raise RuntimeError("the engine's thread has ended; start a new engine")
            self._mail.append((future, work))
            self._changed.notify()
        return future

    async def call(self, work: Callable[[], _T]) -> _T:
        """Run ``work`` on the thread and return what it returns.

        Cancelled before ``work`` has begun: it never begins. After that: returns
        to the caller once it has ended. Raises: what ``work`` raises, RuntimeError
        in the place of what is no Exception, and when the thread ends first.
        """
        future = self.post(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await _ended(future)
            raise

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while self._turn():
                pass
        except BaseException as caught:
            _log.critical("the engine's thread died", exc_info=caught)
            error = caught
        self._finish(error)

    def _turn(self) -> bool:
        """Everything in the mailbox, then one step; false when it is time to end."""
        with self._changed:
            while not (self._mail or self._is_closing or self._steps.has_work):
                self._changed.wait()
            count = len(self._mail)
            if self._is_closing and not count:
                return False
        # Only what was there: a flood of commands must not keep the next step waiting.
        for _ in range(count):
            _answer(*self._mail.popleft())
        self._steps.publish()
        if self._steps.has_work:
            self._steps.step()
            self._steps.publish()
        return True

    def _finish(self, error: BaseException | None) -> None:
        with self._changed:
            if self._is_over:
                return
            self._is_over = True
            mail, self._mail = self._mail, deque()
        for future, _work in mail:
            if future.set_running_or_notify_cancel():
                future.set_exception(RuntimeError("the engine's thread ended before the command"))
        self._steps.shut(error)
        self._steps.publish()


def _answer(future: Future[_T], work: Callable[[], _T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = on_a_thread(work)
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


async def _ended(future: Future[_T]) -> None:
    """Wait until the future is done, whatever its outcome."""
    ended = anyio.Event()
    loop = asyncio.get_running_loop()
    future.add_done_callback(lambda _done: loop.call_soon_threadsafe(ended.set))
    while not ended.is_set():
        try:
            await ended.wait()
        except asyncio.CancelledError:
            # A second cancellation changes nothing: the caller gets one at the end.
            continue
