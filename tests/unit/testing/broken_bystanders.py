"""Load strategies that write to memory of others, or change what the whole process shares.

Each changes it anew at every update, and gives it back when a test is over.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch

from hotswap.seams import Stage
from hotswap.types import Payload, Placement, TensorSpec, Update
from tests.unit.testing.file_strategy import FilePayload, FileStage, FileStrategy
from tests.unit.testing.planted_strategies import LEFT_BEHIND, VICTIM, broken, broken_stage

__all__: list[str] = []

LATE = "test_memory_that_was_filled_is_left_alone"
SHARED = "test_the_process_stays_as_it_was"

_numbers = itertools.count()


class Remembering(FilePayload):
    """Calls ``note`` with every ``out``."""

    def __init__(self, spec: TensorSpec, fd: int, note: Callable[[torch.Tensor], None]) -> None:
        super().__init__(spec, fd)
        self.note = note

    def read_into(self, out: torch.Tensor) -> None:
        super().read_into(out)
        self.note(out)


@broken_stage("an out is written to at the end", LATE, says=r"once more: layers\.1\.float32;?$")
class WritesAtTheEnd(FileStage):
    """The same bytes again, so that nobody sees it who has not used the memory meanwhile."""

    def __init__(self, update: Update, placement: Placement) -> None:
        super().__init__(update, placement)
        self.late: list[tuple[torch.Tensor, torch.Tensor]] = []

    def payload(self, spec: TensorSpec) -> Payload:
        if spec.name != VICTIM:
            return super().payload(spec)

        def note(out: torch.Tensor) -> None:
            self.late.append((out, out.clone()))

        return Remembering(spec, self.fds[spec.name], note)

    def close(self) -> None:
        super().close()
        while self.late:
            out, data = self.late.pop()
            out.copy_(data)


def changing(what: str, says: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Plant a strategy that calls the function when it is opened."""

    def plant(change: Callable[[], None]) -> Callable[[], None]:
        class Changes(FileStrategy):
            @asynccontextmanager
            async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
                change()
                async with super().open(update, placement) as stage:
                    yield stage

        broken(what, SHARED, says=says)(Changes)
        return change

    return plant


@changing("the working directory is changed", r"open, .*changed: the working directory \(")
def moves() -> None:
    LEFT_BEHIND.append(partial(os.chdir, os.getcwd()))
    os.chdir("/" if os.getcwd() != "/" else "/tmp")


@changing("the environment is changed", r"changed: the environment variable PLANTED_BY_A_STRATEGY$")
def sets_a_variable() -> None:
    LEFT_BEHIND.append(partial(os.environ.update, PLANTED_BY_A_STRATEGY=""))
    os.environ["PLANTED_BY_A_STRATEGY"] = str(next(_numbers))


@changing("torch computes on one thread", r"changed: torch's number of threads \(\d, and then 1\)")
def computes_alone() -> None:
    LEFT_BEHIND.append(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(1)


@changing("sockets time out", r"changed: the default time-out of sockets \(")
def times_out() -> None:
    LEFT_BEHIND.append(lambda: socket.setdefaulttimeout(None))
    socket.setdefaulttimeout(1000.0 + next(_numbers))


@changing("a signal is caught", r"changed: the handler of SIGUSR2$")
def catches_a_signal() -> None:
    def caught(number: int, frame: FrameType | None) -> None: ...

    def restored(before: Any) -> None:
        signal.signal(signal.SIGUSR2, before)

    LEFT_BEHIND.append(partial(restored, signal.signal(signal.SIGUSR2, caught)))


@broken(
    "torch's default dtype is another while a stage is open",
    SHARED,
    says=r"while the stage was open, .*torch's default dtype \(torch\.float32, and then torch\.fl",
)
class ChangesTheDtype(FileStrategy):
    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        async with super().open(update, placement) as stage:
            torch.set_default_dtype(torch.float64)
            try:
                yield stage
            finally:
                torch.set_default_dtype(torch.float32)
