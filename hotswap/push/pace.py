"""How fast a body has to come: one that trickles in keeps others from their turn.

Rule: only time in which somebody waits for the sender counts, and whenever enough has come in it,
it begins again.
"""

from __future__ import annotations

__all__ = ["LEAST_BYTES", "Pace", "silent"]

LEAST_BYTES = 16 * 2**20
"""What has to come while it is waited for the sender for so long as it may be silent."""


def silent(stall_s: float) -> str:
    """What is wrong with a sender of which nothing comes any more."""
    return f"the sender has sent nothing for {stall_s:g} s; send the whole body"


class Pace:
    """Of one body, whose sender may be silent for ``stall_s``. One thread at a time."""

    def __init__(self, *, stall_s: float) -> None:
        self._stall_s = stall_s
        self._waited_s = 0.0
        self._came_bytes = 0
        self._silent_s = 0.0

    def __repr__(self) -> str:
        return f"<Pace {self._came_bytes} bytes in {self._waited_s:g} s>"

    def waited(self, seconds: float, *, came_bytes: int) -> None:
        """So long was waited for the sender, and so many bytes have come meanwhile."""
        self._silent_s = 0.0 if came_bytes else self._silent_s + seconds
        self._waited_s += seconds
        self.came(came_bytes)

    def came(self, count: int) -> None:
        """So many bytes have come while nobody waited for them."""
        self._came_bytes += count
        if self._came_bytes >= LEAST_BYTES:
            self._waited_s, self._came_bytes = 0.0, 0

    @property
    def fault(self) -> str | None:
        """What is wrong with it by now."""
        if self._silent_s >= self._stall_s:
            return silent(self._stall_s)
        if self._waited_s >= self._stall_s:
            return (
                f"the sender has sent {self._came_bytes} bytes in the {self._stall_s:g} s that "
                f"were waited for it, wanted {LEAST_BYTES}: others wait for their turn; send it "
                "faster, or in shared memory"
            )
        return None
