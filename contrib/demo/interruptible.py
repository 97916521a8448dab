"""End a run at the first signal, for certain."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import anyio

__all__ = ["interruptible"]


async def interruptible(run: Callable[[], Awaitable[bool]]) -> bool | None:
    """What ``run`` returns; None when SIGINT or SIGTERM ended it first.

    A cancelled scope cancels at every ``await`` until it is left. asyncio's own answer
    to a signal is one cancellation, which can be lost on its way through a time limit.
    """
    result: bool | None = None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    group.cancel_scope.cancel()

        group.start_soon(watch)
        result = await run()
        group.cancel_scope.cancel()
    return result
