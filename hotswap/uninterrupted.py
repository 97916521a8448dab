"""Work that runs to its end once begun, whoever stops waiting for it.

Rule: a cancelled caller waits for the end all the same, and only then goes. Both
ways of being cancelled are met: anyio scopes (an HTTP client that disconnects)
by a shield, and a plain ``task.cancel()`` (``asyncio.wait_for`` around a command)
by a task of the work's own, which no shield could replace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

import anyio
from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar, checkpoint_if_cancelled

from hotswap.foreign import on_a_thread

__all__ = ["on_worker_thread", "own_threads", "uninterrupted"]

_THREADS = 40
_limiter: RunVar[CapacityLimiter] = RunVar("hotswap_threads")

T = TypeVar("T")
Args = TypeVarTuple("Args")


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` in a task of its own and return what it returns.

    Raises: what ``work`` raised; else CancelledError, after the end, when the
    calling task was cancelled meanwhile. A cancelled anyio scope is met at the
    caller's next checkpoint, so that the result still reaches the caller.
    """
    task = asyncio.get_running_loop().create_task(work)
    cancelled = False
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                cancelled = True
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result


def own_threads() -> CapacityLimiter:
    """What limits the worker threads of our own work, for the event loop that runs.

    Not anyio's default one: forward passes of an embedder may hold all threads of that while
    they wait at the gate for the very update that would need one more.
    """
    try:
        return _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(_THREADS)
        _limiter.set(limiter)
        return limiter


async def on_worker_thread(work: Callable[[*Args], T], *args: *Args) -> T:
    """Run blocking ``work`` on a worker thread.

    A cancelled caller leaves when the thread has finished and not before: what
    the thread uses (a mapping, an open file) may then be released. Raises: what ``work``
    raised; a RuntimeError in the place of what is no Exception.
    """
    run = to_thread.run_sync(on_a_thread, work, *args, limiter=own_threads())
    result = await uninterrupted(run)
    await checkpoint_if_cancelled()
    return result
