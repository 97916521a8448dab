"""What the kernel says about another process: memory, descriptors, threads.

``anonymous`` counts private anonymous and shared memory pages: a staging area
must not hide from the figure by being a shared mapping.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = [
    "PeakMemory",
    "Usage",
    "environment",
    "exact_anonymous_bytes",
    "thread_cpu_s",
    "usage",
]

_INTERVAL_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """A process at one moment."""

    anonymous_bytes: int
    descriptors: int
    threads: int


def _kilobytes(text: str, key: str) -> int:
    for line in text.splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise ValueError(f"the kernel shows no {key}; wanted Linux 4.5 or later")


def anonymous_bytes(pid: int) -> int:
    """From ``status``: quick, and a few hundred kilobytes off."""
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * (_kilobytes(text, "RssAnon") + _kilobytes(text, "RssShmem"))


def exact_anonymous_bytes(pid: int) -> int:
    """From ``smaps_rollup``: exact, and the process stops for it."""
    rollup = _kilobytes(Path(f"/proc/{pid}/smaps_rollup").read_text(), "Anonymous")
    shared = _kilobytes(Path(f"/proc/{pid}/status").read_text(), "RssShmem")
    return 1024 * (rollup + shared)


def usage(pid: int) -> Usage:
    """Exact memory, open descriptors and threads now."""
    return Usage(
        anonymous_bytes=exact_anonymous_bytes(pid),
        descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        threads=len(list(Path(f"/proc/{pid}/task").iterdir())),
    )


def environment(pid: int, *names: str) -> dict[str, str | None]:
    """The environment that the process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    given = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return {name: given.get(name) for name in names}


def thread_cpu_s(pid: int) -> dict[int, float]:
    """Processor seconds that each living thread has had, by its number; the first has ``pid``."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    return {
        int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks
    }


class PeakMemory:
    """Samples anonymous memory every 5 ms while it is entered; ``peak_bytes`` after."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak_bytes = 0
        self.samples = 0

    def __enter__(self) -> Self:
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

    def _sample(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self.peak_bytes = max(self.peak_bytes, anonymous_bytes(self._pid))
            self.samples += 1
            due += _INTERVAL_S
            self._stop.wait(max(0.0, due - time.monotonic()))
