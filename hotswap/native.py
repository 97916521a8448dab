"""Loops that numba compiles, where it is installed: ``pip install 'hotswap[native]'``.

Whoever has such a loop has one of numpy as well, which gives the same bytes. The first use
compiles, which takes seconds and is kept beside the module for later processes where that
can be written.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from hotswap.native_cache import share_cache
from hotswap.native_calls import make_callable

__all__ = ["compiled", "has_native"]

_log = logging.getLogger("hotswap.native")


@cache
def has_native() -> bool:
    """Whether numba is installed and works here."""
    try:
        importlib.import_module("numba")
    except ImportError as error:
        _log.debug("no loops are compiled: %s", error)
        return False
    return True


@cache
def compiled(
    kernel: Callable[..., Any], *called: Callable[..., Any], brief: bool = False
) -> Callable[..., Any]:
    """``kernel``, compiled at its first call for each kind of arguments.

    ``brief``: it takes less time than another thread does to be woken up for the lock.
    It may use ``call``, and the functions ``called``, which are of its module: what is kept for
    later processes is made anew when that changes, and no other.
    """
    numba = importlib.import_module("numba")
    make_callable()
    for function in called:
        numba.extending.register_jitable(function)
    # Without the GIL: a thread for each core works on arrays of its own.
    ready: Callable[..., Any] = numba.njit(nogil=not brief, cache=True)(kernel)
    share_cache(ready)
    return ready
