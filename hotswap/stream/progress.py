"""How far a pull is, and what it cost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["LOG_EVERY_S", "Progress", "Tally"]

_log = logging.getLogger("hotswap.pull")
LOG_EVERY_S = 5.0
"""How often a phase that takes long says how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """``done_bytes`` of ``total_bytes`` of the phase are through."""

    phase: str
    done_bytes: int
    total_bytes: int


class Tally:
    """Counts bytes and seconds of one pull, and tells who wants to know. Any thread."""

    def __init__(self, listener: Callable[[Progress], None] | None = None) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._phase, self._done, self._total = "", 0, 0
        self._logged = 0.0
        self.read_bytes: int = 0
        self.written_bytes: int = 0
        self.seconds: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Tally {self._phase} {self._done} of {self._total} bytes>"

    @contextmanager
    def phase(self, name: str, *, total_bytes: int = 0) -> Iterator[None]:
        """Time the body as ``name``; phases follow one another."""
        with self._lock:
            self._phase, self._done, self._total = name, 0, total_bytes
            self._logged = begin = time.monotonic()
        if self._listener is not None:
            self._listener(Progress(phase=name, done_bytes=0, total_bytes=total_bytes))
        try:
            yield
        finally:
            spent = time.monotonic() - begin
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def through(self, *, read: int = 0, written: int = 0, done: int = 0) -> None:
        """Count bytes; ``done`` of the phase's total."""
        with self._lock:
            self.read_bytes += read
            self.written_bytes += written
            self._done += done
            due = done > 0 and time.monotonic() - self._logged >= LOG_EVERY_S
            if due:
                self._logged = time.monotonic()
            elif not done or self._listener is None:
                return
            shown = Progress(phase=self._phase, done_bytes=self._done, total_bytes=self._total)
        if due:
            _log.info(
                "%s: %.1f of %.1f MB", shown.phase, shown.done_bytes / 1e6, shown.total_bytes / 1e6
            )
        if self._listener is not None:
            self._listener(shown)
