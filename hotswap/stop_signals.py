"""SIGTERM and SIGINT: the first one asks for an orderly end, the second one is an end.

After the first the system's own answer is back in force, so that a second signal ends
the process at once, whatever its event loop or its threads are busy with.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from types import TracebackType

import anyio

__all__ = ["StopSignals", "end_for_certain"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger("hotswap.serve")


class StopSignals:
    """Waits for the first signal while the context is open. Main thread, event loop."""

    def __init__(self) -> None:
        self._came: signal.Signals | None = None
        self._asked = anyio.Event()

    def __repr__(self) -> str:
        return f"<StopSignals {self._came.name if self._came else 'none yet'}>"

    async def wait(self) -> signal.Signals:
        """The first signal, once it comes."""
        await self._asked.wait()
        assert self._came is not None
        return self._came

    def __enter__(self) -> StopSignals:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._ask, number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._came is None:
            self._let_go()

    def _ask(self, number: signal.Signals) -> None:
        self._let_go()
        for each in _SIGNALS:
            # A traceback from somewhere in the shutdown would help nobody.
            signal.signal(each, signal.SIG_DFL)
        self._came = number
        self._asked.set()

    def _let_go(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def end_for_certain(*, after_s: float, code: int = 0) -> None:
    """End the process with ``code`` once ``after_s`` have passed, if it has not ended by then.

    For a source that does not answer on a worker thread, which nothing can cancel:
    weights live in memory, and nothing that is cut off here would have outlived the process.
    """

    def end() -> None:
        _log.warning("a thread has not ended after %g s: the process ends without it", after_s)
        logging.shutdown()
        os._exit(code)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()
