"""Whether anybody still has a segment: the process that has made it, or another.

Rules:

* A process is its number and the time at which it was started; a number alone is another
  process's some day. One that has ended is gone, also while its parent has not asked how (a
  zombie).
* What another process has mapped is not nobody's, though its owner has ended.
* A process of another PID namespace has another number here, or none: whether it has a segment
  is asked of the kernel, by a lease.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["UNKNOWN", "Owner", "is_held", "is_mapped"]

UNKNOWN = -1
"""When a process was started that the system would not tell of: it has no descriptors left."""

_ENDED = frozenset({b"Z", b"X", b"x"})
# Fields of /proc/PID/stat behind the program's name: proc(5) counts from 1, and that name is 2.
_STATE, _STARTED = 3 - 3, 22 - 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process ``pid`` that was started at ``started`` (ticks since boot); None is one that
    had ended when it was looked for, and ``UNKNOWN`` one that could not be looked for."""

    pid: int
    started: int | None

    @classmethod
    def of(cls, segment: str) -> Self:
        """The owner of a segment of torch's, as it is now: the name begins with its number."""
        pid = int(segment.split("_")[1])
        try:
            return cls(pid=pid, started=_started(pid))
        except OSError:
            return cls(pid=pid, started=UNKNOWN)

    @property
    def lives(self) -> bool:
        """Whether that very process still runs; it does where that cannot be told: torch ends
        a process whose segments somebody else has removed."""
        try:
            now = _started(self.pid)
        except OSError:
            return self.started is not None
        return now is not None and self.started in (now, UNKNOWN)


def is_mapped(path: Path) -> bool:
    """Whether any process that can be asked has the segment ``path`` mapped: one that has got it
    from its owner, say. torch ends such a process when somebody else removes it."""
    wanted = os.fsencode(path)
    for maps in Path("/proc").glob("[0-9]*/maps"):
        # It may have ended meanwhile, or be another user's, who has none of ours.
        with suppress(OSError):
            if any(line.endswith(wanted) for line in maps.read_bytes().splitlines()):
                return True
    return False


def is_held(path: Path) -> bool:
    """Whether any process, of whichever PID namespace, has ``path`` open for writing, or mapped
    so: the kernel gives nobody a lease on it then. False where it gives none at all."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            # Who opens it meanwhile has us told; by default that would end this process.
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False


def _started(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A program's name may have spaces and brackets in it.
    fields = text.rpartition(b")")[2].split()
    return None if fields[_STATE] in _ENDED else int(fields[_STARTED])
