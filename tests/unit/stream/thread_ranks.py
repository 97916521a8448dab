"""Ranks that are threads of one process: who publishes together, without torch.distributed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hotswap.stream.publisher_ranks import Message, Ranks

__all__ = ["ThreadRanks", "together"]

_Result = TypeVar("_Result")
_DEADLINE_S = 60.0


class _Meeting:
    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world)
        self.said = [""] * world


class ThreadRanks:
    """One of the ranks of ``meeting``. Messages go through JSON, as they do on the wire."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank = rank
        self._meeting = meeting

    def gather(self, message: Message) -> list[Message]:
        """What every rank said."""
        self._meeting.said[self.rank] = json.dumps(message)
        self._meeting.barrier.wait(_DEADLINE_S)
        said = [json.loads(one) for one in self._meeting.said]
        self._meeting.barrier.wait(_DEADLINE_S)
        return said


def together(world: int, work: Callable[[Ranks], _Result]) -> list[_Result | BaseException]:
    """Run ``work`` as every rank; what each returned or raised, by rank."""
    meeting = _Meeting(world)
    with ThreadPoolExecutor(world) as pool:
        running = [pool.submit(work, ThreadRanks(rank, meeting)) for rank in range(world)]
        return [one.exception() or one.result() for one in running]
