"""What the log says of a request that failed, where the reply tells of it."""

from __future__ import annotations

import logging

from hotswap.foreign import words_of
from hotswap.http.errors import INTERNAL, wire_of

__all__ = ["log_failure"]

_log = logging.getLogger("hotswap.http")


def log_failure(what: str, error: Exception, *, rid: str | None = None) -> None:
    """One line; a traceback too where ``error`` is a fault that no table row knows."""
    extra = {} if rid is None else {"rid": rid}
    if wire_of(error) is INTERNAL:
        _log.error("%s failed", what, exc_info=error, extra=extra)
    else:
        _log.warning("%s failed: %s", what, words_of(error), extra=extra)
