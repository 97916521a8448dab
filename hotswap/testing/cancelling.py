"""Cancel a call at each of the places where it gives way to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

__all__ = ["KINDS", "Cancelled", "Stepped", "cancelled_at"]

KINDS = ("scope", "task")
"""Both ways to be cancelled: an anyio scope (a client that leaves), and ``task.cancel()``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """``reached``: the call gave way so often; ``ended``: the cancellation ended it."""

    reached: bool
    ended: bool


class Stepped(Awaitable[None]):
    """Awaits ``work`` and calls ``act`` when it gives way for the ``at``-th time, from 0 on.

    ``passed`` counts how often it did.
    """

    def __init__(self, work: Coroutine[Any, Any, object], *, at: int) -> None:
        self._work = work
        self._at = at
        self.act: Callable[[], object] = lambda: None
        self.passed: int = 0

    def __repr__(self) -> str:
        return f"<Stepped at={self._at} passed={self.passed}>"

    @property
    def reached(self) -> bool:
        """Whether the work has given way as often as it takes."""
        return self.passed > self._at

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self._work.__await__()
        go_on: Callable[[], Any] = partial(next, inner)
        while True:
            try:
                waited_for = go_on()
            except StopIteration:
                return
            if self.passed == self._at:
                self.act()
            self.passed += 1
            try:
                got = yield waited_for
            except BaseException as error:
                go_on = partial(inner.throw, error)
            else:
                go_on = partial(inner.send, got)


async def cancelled_at(at: int, work: Coroutine[Any, Any, object], *, kind: str) -> Cancelled:
    """Run ``work`` and cancel it when it gives way for the ``at``-th time.

    Raises: what ``work`` raised, but for the cancellation.
    """
    stepped = Stepped(work, at=at)
    if kind == "scope":
        with anyio.CancelScope() as scope:
            stepped.act = scope.cancel
            await stepped
        return Cancelled(reached=stepped.reached, ended=scope.cancelled_caught)

    async def run() -> None:
        await stepped

    task = asyncio.get_running_loop().create_task(run())
    stepped.act = task.cancel
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return Cancelled(reached=stepped.reached, ended=task.cancelled())
