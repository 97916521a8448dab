"""Reading a local checkpoint as plain files, by who knows of no log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotswap.stream.errors import LocalBusy
from hotswap.stream.lock import reading as holding_shared
from hotswap.stream.log import has_log
from hotswap.stream.materialize import materialize

__all__ = ["has_log", "reading"]


@contextmanager
def reading(directory: Path, *, timeout_s: float = 600.0) -> Iterator[None]:
    """Keep pulls out of ``directory`` while it is read; others may read as well.

    Within it the files are the version that the directory holds: what a log has is written into
    them first. A directory that no pull ever wrote needs no lock and gets none. Raises:
    PullPending when a pull was cut short half-way; StreamError as ``materialize``.
    """
    directory, deadline = Path(directory), time.monotonic() + timeout_s
    while True:
        left = max(0.0, deadline - time.monotonic())
        if has_log(directory):
            materialize(directory, lock_timeout_s=left)
        with holding_shared(directory, timeout_s=left):
            if not has_log(directory):
                yield
                return
        # A pull came in between, and left another log.
        if time.monotonic() >= deadline:
            raise LocalBusy(
                f"{directory}: for {timeout_s:g} s pulls have put versions beside the files as "
                "fast as they were written into them; read again"
            )
