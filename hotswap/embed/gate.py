"""The gate between an embedder's forward passes and the updates of its weights.

Rules:

* An update never overlaps a forward pass: it waits until nobody is inside, and nobody
  comes in until it has ended.
* Whoever waits at the gate comes in as soon as it opens. Who is inside may enter again: an
  update waits for them, so that they must not wait for it.
* Nobody comes in while the weights are not whole: the gate raises what it was told.

Passes are counted, and an update waits for the count alone: a pass may be left by another
thread or task than entered it. Who is inside is known by the context (``contextvars``), which
child tasks and ``asyncio.to_thread`` inherit. A pass whose context is gone (a framework that
enters in one worker thread and leaves in another) counts, and nobody is known to be in it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Self
from weakref import WeakSet

from hotswap.errors import CommandError, IllegalCommand, Overtaken

__all__ = ["ForwardGate"]


class _Pass:
    """One entering of a gate, as the context that entered remembers it.

    ``around`` is the pass of the same context that it began in, of this gate or another.
    """

    __slots__ = ("__weakref__", "around", "gate", "in_task", "left")

    def __init__(self, gate: ForwardGate, *, in_task: bool, around: _Pass | None) -> None:
        self.gate = gate
        self.in_task = in_task
        self.around = around
        self.left = False

    def found(self, gate: ForwardGate, in_task: bool | None = None) -> _Pass | None:
        """This one or the nearest around it that is of ``gate``, of that kind, and not over."""
        one: _Pass | None = self
        while one is not None:
            if not one.left and one.gate is gate and in_task in (None, one.in_task):
                return one
            one = one.around
        return None


_innermost: ContextVar[_Pass | None] = ContextVar("hotswap_pass", default=None)


class ForwardGate:
    """Any thread, any event loop: ``with gate:`` in threads, ``async with gate:`` in tasks.

    ``close`` is for the engine that updates the weights, and so is ``open``.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wakers: list[Callable[[], None]] = []
        self._count = 0
        # Weak: a pass that no context remembers is left by nobody in particular.
        self._known: WeakSet[_Pass] = WeakSet()
        self._is_closed = False
        self._closing = 0
        self._openings = 0
        self._refusal: Callable[[], CommandError] | None = None
        self._last_exit = time.perf_counter()

    def __repr__(self) -> str:
        word = "closed" if self._is_closed else "closing" if self._closing else "open"
        with self._changed:
            return f"<ForwardGate {word}, {self._inside()} inside>"

    @property
    def closed(self) -> bool:
        """Whether no forward pass runs and none may begin. Any thread."""
        return self._is_closed

    def check_outside(self, what: str) -> None:
        """Raises: RuntimeError when the caller is inside, and would wait for itself.

        So is whoever has begun as a child of a pass that is not over: a task, or a thread of
        ``asyncio.to_thread``.
        """
        with self._changed:
            if self._pass_here() is not None:
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
        with self._changed:
            while not self._comes_in(in_task=False):
                self._changed.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(in_task=False)

    async def __aenter__(self) -> Self:
        """Come in; waits while the gate is closed. Any task of any asyncio event loop.

        Raises: WeightsNotWhole.
        """
        await self._until(lambda: self._comes_in(in_task=True))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(in_task=True)

    # --- for the engine

    async def close(self) -> float:
        """Let nobody in; return once nobody is inside.

        Returns ``time.perf_counter()`` of the end of the last forward pass, or of now
        when there was none to wait for. Cancelled: the gate is as it was. Raises:
        Overtaken when it is opened meanwhile; IllegalCommand when who asks is inside.
        """
        begun = time.perf_counter()
        with self._changed:
            if self._pass_here() is not None:
                raise IllegalCommand(
                    "this was asked for inside the gate, and would wait for the forward pass that "
                    "asks; leave the gate first"
                )
            self._closing += 1
            openings = self._openings
        try:
            await self._until(lambda: not self._count or self._openings != openings)
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

    # --- under the lock

    def _comes_in(self, *, in_task: bool) -> bool:
        """Come in if that is possible now."""
        if self._pass_here() is None:
            if self._refusal is not None:
                raise self._refusal()
            if self._is_closed or self._closing:
                return False
        entered = _Pass(self, in_task=in_task, around=_not_over())
        _innermost.set(entered)
        self._known.add(entered)
        self._count += 1
        return True

    def _leave(self, *, in_task: bool) -> None:
        with self._changed:
            if not self._count:
                raise RuntimeError(
                    "the gate was left more often than it was entered; leave it once for each time"
                )
            left = self._pass_here(in_task)
            if left is not None:
                self._forget(left)
            _innermost.set(_not_over())
            self._count -= 1
            if not self._count:
                # Those of contexts that have had their passes left elsewhere.
                for other in tuple(self._known):
                    self._forget(other)
                self._last_exit = time.perf_counter()
                self._notify()

    def _forget(self, left: _Pass) -> None:
        left.left = True
        self._known.discard(left)

    def _pass_here(self, in_task: bool | None = None) -> _Pass | None:
        """The innermost pass of this context that is not over, of one kind or of any."""
        innermost = _innermost.get()
        return None if innermost is None else innermost.found(self, in_task)

    def _inside(self) -> int:
        """How many are inside, each once however often it entered."""
        outer = (one.around for one in self._known)
        return self._count - sum(1 for one in outer if one is not None and one.found(self))

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


def _not_over() -> _Pass | None:
    """The innermost pass of this context, of whichever gate, that is not over."""
    found = _innermost.get()
    while found is not None and found.left:
        found = found.around
    return found
