"""Reads of a source: one after the other, or several at once where they are mostly waiting.

A file of an object store takes several requests, each an answer's way long; that of a file system
is as fast as the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hotswap.stream.objects import Objects

__all__ = ["each_of"]

_AT_ONCE = 4

_One = TypeVar("_One")
_Result = TypeVar("_Result")


def each_of(place: object, items: Sequence[_One], work: Callable[[_One], _Result]) -> list[_Result]:
    """``work`` of each of ``items``, in their order; of what lies at ``place``.

    Raises: what the first of them that failed raised, the others over.
    """
    if not isinstance(place, Objects) or len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(_AT_ONCE, len(items)), "hotswap-read") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            # What has not begun when one has failed does not begin.
            for future in futures:
                future.cancel()
