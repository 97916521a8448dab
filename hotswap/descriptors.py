"""Room for as many connections as the system lets this process have."""

from __future__ import annotations

import resource

__all__ = ["MOST", "raise_limit"]

MOST = 65536
"""No more than this is asked for: what an unlimited process may have is no size for a table."""


def raise_limit() -> int:
    """Raise the soft limit of open descriptors towards the hard one; return what it is then.

    Each request is a connection, and many shells allow 1024 descriptors: fewer than
    ``--max-queued-requests`` may wait. At the limit no connection is taken before others
    have closed theirs (:mod:`hotswap.listening`). A higher limit is left as it is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        # Some systems allow less than the hard limit that they tell.
        return soft
    return wanted
