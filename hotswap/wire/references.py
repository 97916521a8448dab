"""Giving back the references to shared memory that came with a payload.

Rules:

* As many go back as came. The last one is never taken: it is the owner's.
* The owner waits for the reply before it lets go itself, so that both do not count at once.
* A segment whose owner has ended, and that no other process has mapped or holds, is nobody's,
  and is removed. Who only cannot be seen, being of another PID namespace, holds it.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hotswap.wire.owners import Owner, is_held, is_mapped
from hotswap.wire.sent import COUNTERS, CudaStorage, Storage

__all__ = [
    "HEADER_BYTES",
    "SHARED_MEMORY",
    "counter_segment",
    "give_back",
    "give_back_on_device",
]

SHARED_MEMORY = Path("/dev/shm")
"""Where torch keeps its segments."""

HEADER_BYTES = 64
"""torch's count of users (32 bits) and padding, in front of the bytes of a storage."""

_USERS_BYTES, _COUNTER_BYTES = 4, 8
_COUNTERS_BYTES = HEADER_BYTES + COUNTERS * _COUNTER_BYTES
_COUNTING = threading.Lock()  # a count is read and written: by one thread at a time
_GIVING = threading.Lock()  # who gives back holds the segment too


def give_back(
    references: Mapping[str, int],
    *,
    owners: Mapping[str, Owner] | None = None,
    directory: Path = SHARED_MEMORY,
) -> None:
    """Give back so many references to each segment. Any thread; raises nothing.

    ``owners`` are as they were when the payload came; others count as they are now.
    """
    for name, count in references.items():
        owner = (owners or {}).get(name) or Owner.of(name)
        path = directory / name
        with suppress(OSError), _GIVING:
            is_somebodys = owner.lives or is_mapped(path) or is_held(path)
            with _opened(path) as fd:
                if is_somebodys:
                    _count_down(fd, at=0, width=_USERS_BYTES, by=count, least=1)
                else:
                    path.unlink()


def give_back_on_device(storages: Iterable[Storage], *, directory: Path = SHARED_MEMORY) -> None:
    """Tell the senders of device memory that nobody is going to read it. As ``give_back``."""
    for storage in set(storages):
        if isinstance(storage, CudaStorage) and (name := counter_segment(storage, directory)):
            at = HEADER_BYTES + storage.ref_counter_offset * _COUNTER_BYTES
            with suppress(OSError), _opened(directory / name) as fd:
                _count_down(fd, at=at, width=_COUNTER_BYTES, by=1, least=0)


def counter_segment(storage: CudaStorage, directory: Path = SHARED_MEMORY) -> str | None:
    """The segment that has the sender's counter for ``storage``; None for one that cannot have
    it, being of another size. torch writes to whatever it is told, and so may we not."""
    name = storage.ref_counter_handle.removeprefix(b"/").decode("ascii")
    with suppress(OSError):
        found = (directory / name).lstat()
        if stat.S_ISREG(found.st_mode) and found.st_size == _COUNTERS_BYTES:
            return name
    return None


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a regular file; nothing else is opened. Raises: OSError."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(f"{path} is no regular file")
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def _count_down(fd: int, *, at: int, width: int, by: int, least: int) -> None:
    """Take ``by`` from the number at byte ``at``, which does not get smaller than ``least``."""
    with _COUNTING:
        now = int.from_bytes(os.pread(fd, width, at), "little", signed=True)
        left = max(now - by, least)
        if left < now:
            before = os.fstat(fd)
            os.pwrite(fd, left.to_bytes(width, "little", signed=True), at)
            # A request that was sent twice may be reading it still: to that, nothing changed.
            os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
