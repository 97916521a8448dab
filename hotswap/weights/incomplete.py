"""What is said of a file that is shorter than it says, or of a shard that is not there.

Rule: it may still be being written, so that the same call may succeed later; class, ``retryable``
and message say the same.
"""

from __future__ import annotations

from hotswap.errors import UpdateRejected

__all__ = ["ADVICE", "incomplete"]

ADVICE = "wait until it is complete and try again"


def incomplete(seen: str) -> UpdateRejected:
    """The error for what is not wholly there (yet); ``seen`` is what there is."""
    error = UpdateRejected(f"{seen}; {ADVICE}")
    error.retryable = True
    return error
