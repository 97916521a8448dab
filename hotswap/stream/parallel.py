"""A few threads that share out the tensors, the largest first.

Rule: numpy, zstandard and xxhash release the GIL, so that threads are enough. Work that
failed stops the rest, and nothing runs any more when ``run_all`` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Executor, wait
from typing import TypeAlias

__all__ = ["Task", "run_all"]

Task: TypeAlias = tuple[int, Callable[[], None]]
"""How many bytes the work is about, and the work."""


def run_all(pool: Executor, tasks: Iterable[Task]) -> None:
    """Run every task. Raises: what the first one that failed raised, the others over."""
    ordered = sorted(tasks, key=lambda task: task[0], reverse=True)
    futures = [pool.submit(work) for _, work in ordered]
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
    for future in futures:
        if not future.cancelled():
            future.result()
