"""Half of the time for a pull whose threads have to wait, so that decode steps stay short.

A thread costs generation something however nice it is: each of its calls takes the interpreter's
lock back for a moment, and it lets go of a core at the next tick at worst, or when the kernel has
copied its megabytes. How much of that meets one decode step is bounded here by how much of the
time it runs at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Pace"]

_WAITED_SHARE = 0.2
"""Who waits for more than this of its own time is not alone."""

_MOST_S = 0.02
"""A rest is no longer than this: what is sure to end soon need not be looked at meanwhile."""


class Pace:
    """Rests of the threads of a pull, each as long as its last piece of work, if it had to wait.

    On a machine where nobody else wants to run there are none, and in all there is never more rest
    than work.
    """

    def __init__(
        self,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        """``worked``: seconds that the calling thread has run so far."""
        self._sleep, self._clock, self._worked = sleep, clock, worked
        self._own = threading.local()

    def __repr__(self) -> str:
        return "<Pace>"

    def rest(self) -> None:
        """Call it after each piece of work, on the thread that did it."""
        last: tuple[float, float] | None = getattr(self._own, "last", None)
        if last is not None:
            worked = self._worked() - last[1]
            waited = self._clock() - last[0] - worked
            if waited > _WAITED_SHARE * worked:
                self._sleep(min(worked, _MOST_S))
        self._own.last = self._clock(), self._worked()
