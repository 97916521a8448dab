"""What a pull that failed says: what was wrong, and which version is there."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotswap.stream.errors import (
    DiskFull,
    LocalDamaged,
    LocalDiskFailed,
    StreamError,
    raised_as,
)
from hotswap.stream.log import holding_in
from hotswap.stream.state import Reserved

__all__ = ["explained"]


@contextmanager
def explained(local: Path) -> Iterator[None]:
    """Every failure is a StreamError that says which version is there."""
    try:
        with raised_as(StreamError):
            yield
    except OSError as error:
        raise _of_the_disk(local, error) from error
    except StreamError as error:
        _told(local, error)
        raise


def _of_the_disk(local: Path, error: OSError) -> StreamError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        full = f"{local}: no room for the version ({error.strerror}); make room and pull again"
        return _told(local, DiskFull(full))
    return _told(local, LocalDiskFailed(f"{local}: {error}; look after the disk and pull again"))


def _told(local: Path, error: StreamError) -> StreamError:
    """``error``, which now says what the local checkpoint holds."""
    damaged = isinstance(error, LocalDamaged)
    version = error.local_version = None if damaged else _whole_version(local)
    if Reserved(local).is_pending:
        error.holds = f"{local} is half written, and the next pull finishes it"
    elif version is None:
        error.holds = f"{local} holds no whole version"
    else:
        error.holds = f"{local} holds version {version}, whole"
    return error


def _whole_version(local: Path) -> int | None:
    try:
        held = holding_in(local)
        return None if held is None or Reserved(local).is_pending else held.state.number
    except OSError:
        return None
