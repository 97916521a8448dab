"""Cancel a call at each of the places where it gives way to the event loop."""

from __future__ import annotations

import asyncio
import gc
import sysconfig
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import AsyncGeneratorType, FrameType
from typing import Any

import anyio

import hotswap

__all__ = ["KINDS", "Cancelled", "Stepped", "cancelled_at", "place_of"]

KINDS = ("scope", "task")
"""Both ways to be cancelled: an anyio scope (a client that leaves), and ``task.cancel()``."""

_STDLIB = f"{Path(sysconfig.get_path('stdlib')).resolve()}/"
_ANYIO = f"{Path(anyio.__file__).parent}/"
_OWN = f"{Path(hotswap.__file__).resolve().parent}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """``reached``: the call gave way so often; ``ended``: the cancellation ended it.

    ``place`` says where the call was when it gave way for the last time, of those that count.
    """

    reached: bool
    ended: bool
    place: str


class Stepped(Awaitable[None]):
    """Awaits ``work`` and calls ``act`` when it gives way for the ``at``-th time, from 0 on.

    ``passed`` counts how often it did; ``place`` is where it was when ``act`` was called.
    """

    def __init__(self, work: Coroutine[Any, Any, object], *, at: int) -> None:
        self._work = work
        self._at = at
        self.act: Callable[[], object] = lambda: None
        self.passed: int = 0
        self.place: str = "its end"

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
                self.place = place_of(self._work)
                self.act()
            self.passed += 1
            try:
                got = yield waited_for
            except BaseException as error:
                go_on = partial(inner.throw, error)
            else:
                go_on = partial(inner.send, got)


async def cancelled_at(
    at: int,
    work: Coroutine[Any, Any, object],
    *,
    kind: str,
    before: Callable[[], object] = lambda: None,
) -> Cancelled:
    """Run ``work`` and cancel it when it gives way for the ``at``-th time; ``before`` is called
    right before.

    Raises: what ``work`` raised, but for the cancellation.
    """
    stepped = Stepped(work, at=at)

    def cancel(stop: Callable[[], object]) -> None:
        before()
        stop()

    if kind == "scope":
        with anyio.CancelScope() as scope:
            stepped.act = partial(cancel, scope.cancel)
            await stepped
        return Cancelled(reached=stepped.reached, ended=scope.cancelled_caught, place=stepped.place)

    async def run() -> None:
        await stepped

    task = asyncio.get_running_loop().create_task(run())
    stepped.act = partial(cancel, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return Cancelled(reached=stepped.reached, ended=task.cancelled(), place=stepped.place)


def place_of(work: Coroutine[Any, Any, object]) -> str:
    """Where a coroutine that gave way is: function, file and line of the innermost frame that
    is the plug-in's, else of hotswap's."""
    found = {False: "its beginning", True: ""}
    step: Any = work
    while step is not None:
        frame, step = _frame_and_next(step)
        if frame is not None and not _is_library(frame):
            code = frame.f_code
            theirs = not code.co_filename.startswith(_OWN)
            found[theirs] = f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"
    return found[True] or found[False]


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    installed = "-packages/" in name
    return name.startswith(_ANYIO) or (name.startswith(_STDLIB) and not installed)


def _frame_and_next(step: Any) -> tuple[FrameType | None, Any]:
    """The frame of something that is awaited, and what that itself awaits."""
    for kind, awaited in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
        if hasattr(step, f"{kind}_frame"):
            return getattr(step, f"{kind}_frame"), getattr(step, awaited)
    # What awaits the next value of an asynchronous generator says only here which one it is.
    generators = [one for one in gc.get_referents(step) if isinstance(one, AsyncGeneratorType)]
    return None, generators[0] if generators else None
