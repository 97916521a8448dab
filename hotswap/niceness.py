"""Work beside serving, on threads that let forward passes go first."""

from __future__ import annotations

import os
import sys

__all__ = ["give_way"]

# Forward passes get nine tenths of a core that they share with such a thread: at equal
# shares each decode step would take twice as long, beside busy neighbours longer.
_NICENESS = 10


def give_way() -> None:
    """Make this thread nicer than the process, for good; what it starts is as nice.

    Linux alone has a niceness for each thread. One that is nice already stays as it is.
    """
    if sys.platform == "linux":
        wanted = os.getpriority(os.PRIO_PROCESS, os.getpid()) + _NICENESS
        os.nice(max(0, wanted - os.nice(0)))
