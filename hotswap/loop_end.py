"""The event loop of a server, and its end by ``sys.exit()`` in a callback or task of a plug-in.

Rule: asyncio ends its loop at that, whoever said it. The process then ends with that code and
one line in the log; what does not end when it is cancelled (a request that a route has still
open) is not waited for much longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from hotswap.foreign import said
from hotswap.stop_signals import end_for_certain

__all__ = ["run_loop"]

_log = logging.getLogger("hotswap.serve")

_PATIENCE_S = 3.0


def run_loop(serve: Coroutine[Any, Any, None]) -> None:
    """Run ``serve`` on a new event loop. Raises: what it raises, and SystemExit."""
    with asyncio.Runner() as runner:
        try:
            runner.run(serve)
        except SystemExit as error:
            # Before the runner cancels what is left, and waits for it without an end.
            _log.critical(
                "a callback or task on the event loop ended the server with %s", said(error)
            )
            end_for_certain(after_s=_PATIENCE_S, code=_code_of(error))
            raise


def _code_of(error: SystemExit) -> int:
    """The exit code that the interpreter would have for it."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1
