"""Work beside serving, on threads that let forward passes go first."""

from __future__ import annotations

import os
import sys

__all__ = ["give_way", "run_when_idle"]

# Forward passes get nine tenths of a core that they share with such a thread: at equal
# shares each decode step would take twice as long, beside busy neighbours longer.
_NICENESS = 10


def give_way() -> None:
    """Make this thread nicer, for good. Linux alone has a niceness for each thread."""
    if sys.platform == "linux":
        os.nice(_NICENESS)


def run_when_idle() -> None:
    """Have this thread, and those that it will start, run only where no other one wants to.

    For good. A thread that is merely nicer keeps a core for up to a tick (4 ms) after a forward
    pass wants it back, and a decode step wants one back a few hundred times. Where the system
    lacks or forbids it the thread is nicer.
    """
    if sys.platform != "linux":
        return
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        give_way()
