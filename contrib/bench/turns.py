"""Rounds of a benchmark that ends in time, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

__all__ = ["turns"]


def turns(
    rounds: int,
    *,
    within_s: float,
    least: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[int]:
    """0, 1, ... up to ``rounds`` of them; none begins past ``within_s`` but the ``least``."""
    began = clock()
    for turn in range(rounds):
        if turn >= least and clock() - began > within_s:
            return
        yield turn
