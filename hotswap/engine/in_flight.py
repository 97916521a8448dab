"""How many requests are inside the engine: one number for every thread."""

from __future__ import annotations

import threading

from hotswap.errors import QueueFull
from hotswap.types import InFlightCounts

__all__ = ["InFlightLedger"]


class InFlightLedger:
    """Counts requests from ``submit`` to their end, and knows their ids. Any thread.

    Waiting requests hold no KV, running ones do, frozen ones included. Besides
    ``max_queued`` as many may wait as could run at once: those are about to start.
    """

    def __init__(self, *, max_running: int, max_queued: int) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._lock = threading.Lock()
        self._rids: set[str] = set()
        self._running = 0

    @property
    def counts(self) -> InFlightCounts:
        """All three numbers, of one moment."""
        with self._lock:
            return InFlightCounts(
                running=self._running,
                waiting=len(self._rids) - self._running,
                holding_kv=self._running,
            )

    def enter(self, rid: str) -> None:
        """A new request waits.

        Raises: ValueError when ``rid`` is in flight, QueueFull when too many wait.
        """
        with self._lock:
            if rid in self._rids:
                raise ValueError(f"rid {rid!r} is in flight already; wanted one of its own")
            waiting = len(self._rids) - self._running
            places = self._max_queued + self._max_running - self._running
            if waiting >= places:
                raise QueueFull(
                    f"{waiting} requests wait already, wanted fewer than {places}; "
                    "retry when some have ended"
                )
            self._rids.add(rid)

    def start(self) -> None:
        """A waiting request runs, and holds KV."""
        with self._lock:
            self._running += 1

    def park(self) -> None:
        """A running request waits again, without KV."""
        with self._lock:
            self._running -= 1

    def leave(self, rid: str, *, was_running: bool) -> None:
        """The request has ended."""
        with self._lock:
            self._rids.discard(rid)
            self._running -= was_running
