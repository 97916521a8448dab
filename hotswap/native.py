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
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``kernel``, compiled at its first call for each kind of arguments."""
    numba = importlib.import_module("numba")
    # Without the GIL: a thread for each core works on arrays of its own.
    ready: Callable[..., Any] = numba.njit(nogil=True, cache=True)(kernel)
    return ready
