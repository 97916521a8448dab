"""The load strategy ``disk``.

Rule: entering opens and checks, on a worker thread; leaving closes everything,
however the update ended, so that a trainer may delete the directory next.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Self

import anyio.to_thread

from hotswap.seams import Stage
from hotswap.types import Placement, Update
from hotswap.uninterrupted import uninterrupted
from hotswap.weights.checkpoint import Checkpoint
from hotswap.weights.roots import Allowed, Roots

__all__ = ["DiskStrategy"]


class DiskStrategy:
    """Reads ``update.source``, a directory that this process can read.

    ``allowed`` judges the real path of the directory and of every file in it, and is
    called on a worker thread; None allows any place.
    """

    def __init__(self, *, allowed: Allowed | None = None) -> None:
        self.allowed = allowed

    @classmethod
    def from_options(cls, values: Mapping[str, object]) -> Self:
        """Make it from ``weights-root``. Raises: ValueError for a root that is no directory."""
        directories = values.get("weights-root") or ()
        if not isinstance(directories, Iterable) or isinstance(directories, str):
            raise ValueError(f"weights-root is {directories!r}, wanted several directories")
        names = [str(directory) for directory in directories]
        if not all(name.strip() for name in names):
            raise ValueError(f"weights-root is {names}, wanted directories and no empty name")
        roots = Roots.of(names)
        for root in roots.paths:
            if not root.is_dir():
                raise ValueError(f"weights-root {root} is no directory; create it first")
        return cls(allowed=roots if roots.paths else None)

    def __repr__(self) -> str:
        return f"<DiskStrategy in {self.allowed or 'any directory'}>"

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        """Open the checkpoint for as long as the context lasts; every rank reads all of it.

        Raises: UpdateRejected when it is no whole checkpoint, or outside the roots.
        """
        opening = _Opening(update.source, self.allowed)
        try:
            yield await anyio.to_thread.run_sync(opening.run)
        finally:
            # In a task of its own: a task that is cancelled here would never start the thread.
            await uninterrupted(anyio.to_thread.run_sync(opening.close))


class _Opening:
    """A checkpoint that is closed even when nobody waited for it to open.

    A task cancelled by asyncio itself leaves its worker thread running.
    """

    def __init__(self, source: str, allowed: Allowed | None) -> None:
        self._source = source
        self._allowed = allowed
        self._lock = threading.Lock()
        self._closed = False
        self._checkpoint: Checkpoint | None = None

    def run(self) -> Checkpoint:
        checkpoint = Checkpoint.open(self._source, allowed=self._allowed)
        with self._lock:
            self._checkpoint = checkpoint
            if self._closed:
                checkpoint.close()
        return checkpoint

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._checkpoint is not None:
                self._checkpoint.close()
