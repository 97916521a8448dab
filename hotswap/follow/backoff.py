"""How long to wait between two tries of what failed: twice as long each time, up to a bound."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["Backoff", "jittered"]

JITTER = 0.25
"""Servers that were started together do not stay together: each waits up to so much longer."""


def jittered(seconds: float, *, draw: Callable[[], float] = random.random) -> float:
    """``seconds``, or up to a quarter more."""
    return seconds * (1.0 + JITTER * draw())


class Backoff:
    """Waits of one thing that is tried again: ``first_s``, doubled up to ``longest_s``."""

    def __init__(
        self,
        *,
        first_s: float = 1.0,
        longest_s: float = 60.0,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """``draw``: a number from 0 to 1, of which the jitter is made."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._draw = draw
        self.failures: int = 0

    def __repr__(self) -> str:
        return f"<Backoff {self.failures} failures>"

    def failed(self) -> float:
        """Note a failure; how many seconds to wait before the next try."""
        # Bounded itself: 2.0 ** 1024 is no float any more.
        doubled = self._first_s * 2.0 ** min(self.failures, 32)
        self.failures += 1
        return jittered(min(doubled, self._longest_s), draw=self._draw)

    def succeeded(self) -> None:
        """Begin anew with the next failure."""
        self.failures = 0
