"""A bracket around updates, as miles opens one around the updates of a step.

An update is one transaction by itself, with a session and without, so a session changes
nothing about the weights: it is a fact, by which a client that begins twice, or ends
what it has not begun, is told so.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hotswap.http.errors import RequestInvalid

__all__ = ["WeightSession"]


class WeightSession:
    """Whether a session is open. One that nothing came for in ``timeout_s`` is over:
    the client that opened it may have died, and another must be able to begin."""

    def __init__(
        self, *, timeout_s: float = 600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._selector: str | None = None
        self._touched = 0.0
        self._updates = 0

    def __repr__(self) -> str:
        return f"<WeightSession {self.shown() or 'closed'}>"

    @property
    def open(self) -> bool:
        """Whether a session has begun, has not ended and is not abandoned."""
        return self._selector is not None and self._clock() - self._touched < self._timeout_s

    def shown(self) -> dict[str, object] | None:
        """Selector, and updates so far; None while none is open."""
        return {"selector": self._selector, "updates": self._updates} if self.open else None

    def begin(self, selector: str) -> None:
        """Raises: RequestInvalid while a session is open."""
        if self.open:
            raise RequestInvalid(
                f"a weight update session is open, with {self._updates} updates in it; send "
                f"/end_weight_update first, or wait {self._timeout_s:g} s after its last update"
            )
        self._selector, self._updates, self._touched = selector, 0, self._clock()

    def note_update(self) -> None:
        """An update has changed the weights."""
        if self.open:
            self._updates += 1
            self._touched = self._clock()

    def end(self) -> int:
        """How many updates it had. Raises: RequestInvalid while none is open."""
        if not self.open:
            raise RequestInvalid(
                "no weight update session is open; send /begin_weight_update first"
            )
        self._selector = None
        return self._updates
