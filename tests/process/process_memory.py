"""What a process holds, as Linux says it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

__all__ = ["AnonPeak", "anon_bytes", "descriptors", "threads"]


def anon_bytes(pid: int) -> int:
    """Resident anonymous memory: no page cache, no file mapping."""
    return _status(pid, "RssAnon") * 1024


def threads(pid: int) -> int:
    """Threads of the process."""
    return _status(pid, "Threads")


def descriptors(pid: int) -> int:
    """Open descriptors of the process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _status(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    raise AssertionError(f"/proc/{pid}/status has no {field}")


class AnonPeak:
    """Watches a process from a thread while the context is open; ``bytes`` is the most seen."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.bytes = 0

    def __repr__(self) -> str:
        return f"<AnonPeak {self.bytes} bytes>"

    def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, anon_bytes(self._pid))
            if self._stop.wait(0.002):
                return

    def __enter__(self) -> AnonPeak:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
