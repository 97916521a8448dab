"""A :class:`HotSwap` on an event loop of its own, for callers that have none, or another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from hotswap.controller import PauseReport
from hotswap.embed.gate import ForwardGate
from hotswap.embed.hot_swap import HotSwap
from hotswap.state import State
from hotswap.types import LoadMode, PauseMode, Scope, UpdateReport

__all__ = ["HotSwapThread"]

T = TypeVar("T")


class HotSwapThread:
    """Runs ``swap`` on a thread with an event loop while the ``with`` block is open.

    The methods may be called on every thread, and block it; on an event loop's thread
    await :meth:`update_async` instead, or put the others into a thread. ``gate`` is that
    of ``swap``. Leaving the block ends an update as leaving a :class:`HotSwap` does.
    """

    def __init__(self, swap: HotSwap) -> None:
        self._swap = swap
        self._portal: BlockingPortal | None = None
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
        try:
            self._stack.close()
        finally:
            self._portal = None

    def update(
        self,
        source: str,
        *,
        strategy: str = "disk",
        version: str | int | None = None,
        scope: Scope = Scope.FULL,
        mode: LoadMode = LoadMode.STAGED,
        options: Mapping[str, object] | None = None,
    ) -> UpdateReport:
        """See :meth:`HotSwap.update`. Blocks."""
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
        source: str,
        *,
        strategy: str = "disk",
        version: str | int | None = None,
        scope: Scope = Scope.FULL,
        mode: LoadMode = LoadMode.STAGED,
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
        return await asyncio.wrap_future(self._begun(update))

    def pause(self, mode: PauseMode = PauseMode.WAIT) -> PauseReport:
        """See ``Controller.pause``. Blocks until no forward pass runs."""
        return self._blocking(partial(self._swap.controller.pause, mode))

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
            return self._begun(work).result()
        raise RuntimeError(
            "a blocking call on an event loop's thread would stop that loop, and forward passes "
            "on it that the update waits for; await update_async, or call it in a thread"
        )

    def _begun(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        if self._portal is None:
            raise RuntimeError("this HotSwapThread does not run; call it inside its 'with' block")
        return self._portal.start_task_soon(work)
