"""From the server's options to a running engine."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio.to_thread

if TYPE_CHECKING:
    from hotswap_transformers.engine import TransformersEngine

__all__ = ["engine_from_options"]

# Both print to standard error by themselves, in a form of their own.
_LOGGERS = ("transformers", "ContinuousBatchingLogger")


@asynccontextmanager
async def engine_from_options(values: Mapping[str, object]) -> AsyncIterator[TransformersEngine]:
    """Load ``model`` and run it while the context is open.

    Raises: UpdateRejected for a checkpoint that is not whole, ValueError.
    """
    async with await anyio.to_thread.run_sync(_load, values) as engine:
        yield engine


def _load(values: Mapping[str, object]) -> TransformersEngine:
    from hotswap_transformers.engine import TransformersEngine

    _log_as_the_server_does()
    return TransformersEngine.from_directory(
        str(values["model"]),
        dtype=str(values.get("dtype", "auto")),
        device=str(values.get("device", "auto")),
        max_running_requests=_number(values, "max-running-requests", 16),
        max_queued=_number(values, "max-queued-requests", 1024),
        chunked_prefill_size=_number(values, "chunked-prefill-size", 512),
        max_total_tokens=_number(values, "max-total-tokens", 0) or None,
        mem_fraction_static=float(str(values.get("mem-fraction-static", 0.5))),
    )


def _log_as_the_server_does() -> None:
    """Hand the library's lines to the process's own handlers, which know its format."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def _number(values: Mapping[str, object], name: str, default: int) -> int:
    return int(str(values.get(name, default)))
