"""Work beside serving, on threads that let forward passes go first."""

from __future__ import annotations

import os
import sys

__all__ = ["give_way"]

# Forward passes get nine tenths of a core that they share with such a thread: at equal
# shares each decode step would take twice as long, beside busy neighbours longer.
_NICENESS = 10


def give_way() -> None:
    """Make this thread nicer, for good. Linux alone has a niceness for each thread."""
    if sys.platform == "linux":
        os.nice(_NICENESS)
