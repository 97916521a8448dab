"""The gate between an embedder's forward passes and the updates of its weights.

Rules:

* An update never overlaps a forward pass: it waits until nobody is inside, and nobody
  comes in until it has ended.
* Whoever waits at the gate comes in as soon as it opens. Who is inside may enter again.
* Nobody comes in while the weights are not whole: the gate raises what it was told.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeAlias

from hotswap.errors import CommandError, Overtaken

__all__ = ["ForwardGate"]

Holder: TypeAlias = "int | asyncio.Task[object]"
"""Who is inside: a thread by its id, or a task."""


class ForwardGate:
    """Any thread, any event loop: ``with gate:`` in threads, ``async with gate:`` in tasks.

    ``close`` is for the engine that updates the weights, and so is ``open``.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wakers: list[Callable[[], None]] = []
        self._inside: dict[Holder, int] = {}
        self._is_closed = False
        self._closing = 0
        self._openings = 0
        self._refusal: Callable[[], CommandError] | None = None
        self._last_exit = time.perf_counter()

    def __repr__(self) -> str:
        word = "closed" if self._is_closed else "closing" if self._closing else "open"
        return f"<ForwardGate {word}, {len(self._inside)} inside>"

    @property
    def closed(self) -> bool:
        """Whether no forward pass runs and none may begin. Any thread."""
        return self._is_closed

    def check_outside(self, what: str) -> None:
        """Raises: RuntimeError when the caller is inside, and would wait for itself."""
        try:
            holder: Holder = _this_task()
        except RuntimeError:
            holder = threading.get_ident()
        with self._changed:
            if holder in self._inside:
                raise RuntimeError(
                    f"{what} inside the gate would wait for itself; leave the gate first"
                )

    # --- for those who run forward passes

    def __enter__(self) -> Self:
        """Come in; waits while the gate is closed. A thread without an event loop.

        Raises: WeightsNotWhole; RuntimeError on an event loop's thread, which the wait
        would stop, and with it the update that it waits for.
        """
        if _loop_runs_here():
            raise RuntimeError(
                "'with gate' on an event loop's thread would stop the loop, and with it the "
                "update it waits for; write 'async with gate', or run the pass in a thread"
            )
        holder = threading.get_ident()
        with self._changed:
            while not self._comes_in(holder):
                self._changed.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(threading.get_ident())

    async def __aenter__(self) -> Self:
        """Come in; waits while the gate is closed. Any task of any asyncio event loop.

        Raises: WeightsNotWhole.
        """
        holder = _this_task()
        await self._until(lambda: self._comes_in(holder))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(_this_task())

    # --- for the engine

    async def close(self) -> float:
        """Let nobody in; return once nobody is inside.

        Returns ``time.perf_counter()`` of the end of the last forward pass, or of now
        when there was none to wait for. Cancelled: the gate is as it was. Raises:
        Overtaken when it is opened meanwhile.
        """
        begun = time.perf_counter()
        with self._changed:
            self._closing += 1
            openings = self._openings
        try:
            await self._until(lambda: not self._inside or self._openings != openings)
            with self._changed:
                if self._openings != openings:
                    raise Overtaken(
                        "the gate was opened while it was being closed; close it again if "
                        "forward passes shall stop"
                    )
                self._is_closed = True
                return max(begun, self._last_exit)
        finally:
            with self._changed:
                self._closing -= 1
                self._notify()

    def open(self) -> None:
        """Let everybody in. Idempotent; any thread."""
        with self._changed:
            self._is_closed = False
            self._openings += 1
            self._notify()

    def refuse(self, reason: Callable[[], CommandError] | None) -> None:
        """Raise ``reason()`` to everybody who comes or waits; None to stop that. Any thread."""
        with self._changed:
            self._refusal = reason
            self._notify()

    # --- inside

    def _comes_in(self, holder: Holder) -> bool:
        """Under the lock: come in if that is possible now."""
        if holder not in self._inside:
            if self._refusal is not None:
                raise self._refusal()
            if self._is_closed or self._closing:
                return False
        self._inside[holder] = self._inside.get(holder, 0) + 1
        return True

    def _leave(self, holder: Holder) -> None:
        with self._changed:
            self._inside[holder] -= 1
            if not self._inside[holder]:
                del self._inside[holder]
                self._last_exit = time.perf_counter()
                self._notify()

    def _notify(self) -> None:
        self._changed.notify_all()
        for wake in self._wakers:
            wake()

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Return when ``holds`` says so, which is asked under the lock."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # A closed loop has nobody left who could wait.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(changed.set)

        with self._changed:
            if holds():
                return
            self._wakers.append(wake)
        try:
            while True:
                await changed.wait()
                changed.clear()
                with self._changed:
                    if holds():
                        return
        finally:
            with self._changed:
                self._wakers.remove(wake)


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _this_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    return task
