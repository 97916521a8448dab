"""A :class:`HotSwap` on an event loop of its own, for callers that have none, or another."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from anyio import CancelScope
from anyio.from_thread import BlockingPortal, start_blocking_portal

from hotswap.controller import PauseReport
from hotswap.embed.gate import ForwardGate
from hotswap.embed.hot_swap import HotSwap
from hotswap.errors import ShuttingDown
from hotswap.state import State
from hotswap.types import LoadMode, PauseMode, Scope, UpdateReport, member
from hotswap.uninterrupted import uninterrupted

__all__ = ["HotSwapThread"]

T = TypeVar("T")


class HotSwapThread:
    """Runs ``swap`` on a thread with an event loop while the ``with`` block is open.

    The methods may be called on every thread, and block it; on an event loop's thread
    await :meth:`update_async` instead, or put the others into a thread. ``gate`` is that
    of ``swap``. Leaving the block ends an update as leaving a :class:`HotSwap` does; whoever
    calls from then on gets ShuttingDown, and before the block a RuntimeError.
    """

    def __init__(self, swap: HotSwap) -> None:
        self._swap = swap
        self._portal: BlockingPortal | None = None
        self._left = False
        # A call is begun whole before the block is left, or not at all.
        self._beginning = threading.Lock()
        self._stack = ExitStack()

    def __repr__(self) -> str:
        return f"<HotSwapThread {'running' if self._portal else 'not running'} {self._swap!r}>"

    @property
    def gate(self) -> ForwardGate:
        """Where forward passes come in."""
        return self._swap.gate

    @property
    def state(self) -> State:
        """The state of the machine now."""
        return self._swap.controller.machine.state

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal(backend="asyncio"))
            stack.enter_context(self._portal.wrap_async_context_manager(self._swap))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._beginning:
            self._portal, self._left = None, True
        self._stack.close()

    def update(
        self,
        source: str | os.PathLike[str],
        *,
        strategy: str = "disk",
        version: str | int | None = None,
        scope: Scope | str = Scope.FULL,
        mode: LoadMode | str = LoadMode.STAGED,
        options: Mapping[str, object] | None = None,
    ) -> UpdateReport:
        """See :meth:`HotSwap.update`. Blocks; a Ctrl-C meanwhile is as a cancellation."""
        return self._blocking(
            partial(
                self._swap.update,
                source,
                strategy=strategy,
                version=version,
                scope=scope,
                mode=mode,
                options=options,
            )
        )

    async def update_async(
        self,
        source: str | os.PathLike[str],
        *,
        strategy: str = "disk",
        version: str | int | None = None,
        scope: Scope | str = Scope.FULL,
        mode: LoadMode | str = LoadMode.STAGED,
        options: Mapping[str, object] | None = None,
    ) -> UpdateReport:
        """See :meth:`HotSwap.update`; awaited on any asyncio event loop, which goes on."""
        update = partial(
            self._swap.update,
            source,
            strategy=strategy,
            version=version,
            scope=scope,
            mode=mode,
            options=options,
        )
        self.gate.check_outside("update_async")
        call = _Call(update)
        self._begin(call)
        try:
            return await asyncio.wrap_future(call.answer)
        except asyncio.CancelledError:
            await uninterrupted(call.over())
            raise

    def pause(self, mode: PauseMode | str = PauseMode.WAIT) -> PauseReport:
        """See ``Controller.pause``. Blocks until no forward pass runs."""
        wanted = member(PauseMode, mode, what="pause mode")
        return self._blocking(partial(self._swap.controller.pause, wanted))

    def resume(self) -> None:
        """See ``Controller.resume``. Blocks."""
        self._blocking(self._swap.controller.resume)

    def flush(self) -> int:
        """See ``Controller.flush``. Blocks."""
        return self._blocking(self._swap.controller.flush)

    def _blocking(self, work: Callable[[], Awaitable[T]]) -> T:
        self.gate.check_outside("a command")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            call = _Call(work)
            try:
                self._begin(call)
                return call.answer.result()
            except KeyboardInterrupt:
                call.stop()
                raise
        raise RuntimeError(
            "a blocking call on an event loop's thread would stop that loop, and forward passes "
            "on it that the update waits for; await update_async, or call it in a thread"
        )

    def _begin(self, call: _Call[T]) -> None:
        """Raises: ShuttingDown once the block is being left; RuntimeError before it."""
        with self._beginning:
            if self._left:
                raise ShuttingDown(
                    "this HotSwapThread has ended, or is about to: its 'with' block is being left; "
                    "nothing was begun"
                )
            if self._portal is None:
                raise RuntimeError(
                    "this HotSwapThread does not run yet; call it inside its 'with' block"
                )
            call.begin(self._portal)


class _Call(Generic[T]):
    """One command on the other thread: its answer, and whether it is over.

    Cancelled, ``answer`` ends at once, and the command once it is undone or has run to its end.
    """

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self.answer: Future[T]
        self._portal: BlockingPortal | None = None
        self._work = work
        self._scope: CancelScope | None = None
        self._over: Future[None] = Future()
        self._over.set_running_or_notify_cancel()  # nobody who waits can cancel it

    def __repr__(self) -> str:
        return f"<_Call {'over' if self._over.done() else 'running'}>"

    def begin(self, portal: BlockingPortal) -> None:
        """Run the command; its ``answer`` will be there."""
        self._portal = portal
        self.answer = portal.start_task_soon(self._run)

    def stop(self) -> None:
        """Cancel the command and block until it is over; also where ``begin`` did not get far."""
        if self._portal is None:
            return
        # A portal that is being closed takes nothing any more, and whoever closes it ends this.
        with suppress(RuntimeError):
            # Tasks begin in the order in which they were asked for: what is to be stopped has.
            self._portal.start_task_soon(self._stop)
            self._over.result()

    async def over(self) -> None:
        """Wait until the command runs no more; on any event loop."""
        await asyncio.wrap_future(self._over)

    async def _run(self) -> T:
        with CancelScope() as self._scope:
            try:
                return await self._work()
            finally:
                self._over.set_result(None)
        raise asyncio.CancelledError("the command was stopped")

    async def _stop(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        elif not self._over.done():
            self._over.set_result(None)
