"""A direct update lets its source look at everything before anything is stopped for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import anyio
import pytest

from hotswap.controller import Controller
from hotswap.errors import UpdateRejected
from hotswap.testing.fakes import FakeEngine, FakeStage, Steps
from hotswap.testing.rig import CANCELS, SOURCES, settle, update_from
from hotswap.types import LoadMode, Placement, Update

STEPS = 3


class CheckedStage(FakeStage):
    """Calls ``look`` with the number of each step of its check."""

    def __init__(self, look: Callable[[int], None]) -> None:
        super().__init__(SOURCES["B"], steps=Steps())
        self._look = look

    def check_before_writing(self) -> Iterator[None]:
        for number in range(STEPS):
            self._look(number)
            yield


class Checks:
    """The strategy of such stages; ``seen`` are the steps that were taken."""

    def __init__(self, look: Callable[[int], None]) -> None:
        self.seen = list[int]()
        self.left = 0
        self._look = look

    def _note(self, number: int) -> None:
        self.seen.append(number)
        self._look(number)

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[CheckedStage]:
        try:
            yield CheckedStage(self._note)
        finally:
            self.left += 1


@asynccontextmanager
async def controlled(checks: Checks) -> AsyncIterator[tuple[Controller, FakeEngine]]:
    engine = FakeEngine(None, steps=Steps())
    async with Controller(engine, strategies={"fake": checks}) as controller:
        yield controller, engine


async def test_all_of_it_comes_before_the_pause() -> None:
    calls = list[list[str]]()
    checks = Checks(lambda _: calls.append(list(engine.calls)))
    async with controlled(checks) as (controller, engine):
        await controller.update(update_from("B", mode=LoadMode.DIRECT))
        assert checks.seen == [0, 1, 2]
        assert calls == [[], [], []]
        assert engine.calls[0] == "pause"
        assert engine.values() == {2.0}
        # What is staged is compared bucket by bucket, by who delivers them.
        await controller.update(update_from("B"))
        assert checks.seen == [0, 1, 2]
    assert checks.left == 2


@pytest.mark.parametrize("error", [UpdateRejected("damaged"), OSError(5, "Input/output error")])
async def test_what_it_finds_rejects_the_update_and_nothing_was_stopped(error: Exception) -> None:
    def look(number: int) -> None:
        if number == 1:
            raise error

    checks = Checks(look)
    async with controlled(checks) as (controller, engine):
        with pytest.raises(
            UpdateRejected, match=r"damaged|checking 'B' failed with .*Input/output"
        ):
            await controller.update(update_from("B", mode=LoadMode.DIRECT))
        assert engine.calls == []
        assert engine.values() == {0.0}
    assert (checks.seen, checks.left) == ([0, 1], 1)


@pytest.mark.parametrize("way", CANCELS)
async def test_a_client_that_leaves_waits_for_no_more_than_a_step(way: str) -> None:
    looking, go = anyio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def look(number: int) -> None:
        loop.call_soon_threadsafe(looking.set)
        go.wait()

    checks, scope = Checks(look), anyio.CancelScope()
    async with controlled(checks) as (controller, engine):

        async def call() -> None:
            with scope:
                await controller.update(update_from("B", mode=LoadMode.DIRECT))

        task = asyncio.ensure_future(call())
        await looking.wait()
        (scope.cancel if way == "scope" else task.cancel)()
        await settle()
        assert not task.done()  # what the thread reads stays open
        assert checks.left == 0
        go.set()
        await asyncio.wait([task])
        assert (checks.seen, checks.left) == ([0], 1)
        assert engine.calls == []
        assert engine.values() == {0.0}
