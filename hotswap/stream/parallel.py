"""A few threads that share out the tensors, the largest first.

Rule: numpy, zstandard and xxhash release the GIL, so that threads are enough. Work that
failed stops the rest, and nothing runs any more when ``run_all`` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, wait
from functools import partial
from typing import TypeAlias

__all__ = ["Task", "run_all"]

_SHORT_BYTES = 2**18
_TOGETHER = 16
"""Of work about less than ``_SHORT_BYTES`` so many are one: handing it over takes as long."""

Task: TypeAlias = tuple[int, Callable[[], None]]
"""How many bytes the work is about, and the work."""


def run_all(
    pool: Executor, tasks: Iterable[Task], *, beside: Callable[[], None] | None = None
) -> None:
    """Run every task, and ``beside`` in this thread while they run.

    Raises: what the first one that failed raised, the others over.
    """
    ordered = sorted(tasks, key=lambda task: task[0], reverse=True)
    futures = [pool.submit(work) for work in _together(ordered)]
    try:
        if beside is not None:
            beside()
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
    for future in futures:
        if not future.cancelled():
            future.result()


def _together(ordered: Sequence[Task]) -> Iterator[Callable[[], None]]:
    """The work of ``ordered``, the largest first; short ones several at once."""
    long = [work for size, work in ordered if size >= _SHORT_BYTES]
    yield from long
    for begin in range(len(long), len(ordered), _TOGETHER):
        yield partial(_in_turn, [work for _, work in ordered[begin : begin + _TOGETHER]])


def _in_turn(works: Sequence[Callable[[], None]]) -> None:
    for work in works:
        work()
