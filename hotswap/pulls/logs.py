"""How much lies beside the files of the directories that a server pulls into."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hotswap.stream.log import holding_in

__all__ = ["LogSize", "LogSizes"]


@dataclass(frozen=True, slots=True)
class LogSize:
    """The versions of a log, and the bytes of their files."""

    versions: int = 0
    size_bytes: int = 0


class LogSizes:
    """What was seen last of each directory. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: Mapping[Path, LogSize] = {}

    def __repr__(self) -> str:
        return f"<LogSizes {self.versions} versions, {self.size_bytes} bytes>"

    def look(self, directory: Path) -> LogSize:
        """See how long the log of ``directory`` is. Raises: OSError."""
        held = holding_in(directory)
        log = None if held is None else held.log
        size = LogSize() if log is None else LogSize(len(log.versions), log.size_bytes)
        with self._lock:
            self._seen = {**self._seen, directory: size}
        return size

    @property
    def versions(self) -> int:
        """Of the longest log: so many versions are applied by whoever reads it."""
        return max((size.versions for size in self._seen.values()), default=0)

    @property
    def size_bytes(self) -> int:
        """Of all logs."""
        return sum(size.size_bytes for size in self._seen.values())
