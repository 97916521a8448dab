"""Load strategies that leave a task behind, or do not end when they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from hotswap.seams import Stage
from hotswap.types import Placement, Update
from tests.unit.testing.file_strategy import FileStrategy
from tests.unit.testing.planted_strategies import broken

__all__: list[str] = []


@broken(
    "a task goes on after an update",
    "test_leaving_gives_every_handle_back",
    says=r"this is still held: task Task-\d+ \(sleep\)",
)
class LeavesATask(FileStrategy):
    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        async with super().open(update, placement) as stage:
            yield stage
        self.left = asyncio.get_running_loop().create_task(asyncio.sleep(3600.0))


@broken(
    "a cancellation is swallowed, and the source opened",
    "test_a_cancellation_of_opening_is_not_swallowed",
    says=r"cancelled at await 0 of opening, in open \(broken_tasks\.py:\d+\), it went on",
)
class OpensAllTheSame(FileStrategy):
    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        try:
            await anyio.lowlevel.checkpoint()
        except BaseException as error:
            if isinstance(error, Exception):
                raise
        async with super().open(update, placement) as stage:
            yield stage
