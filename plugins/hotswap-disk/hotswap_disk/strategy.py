"""The load strategy ``disk``.

Rule: entering opens and checks, on a worker thread; leaving closes everything,
however the update ended, so that a trainer may delete the directory next. A directory
that ``hotswap.stream.pull`` keeps is not pulled into in between.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Self

import anyio.to_thread

from hotswap.errors import UpdateRejected
from hotswap.pulls.logged import lay_log_over
from hotswap.pulls.told_damage import told_as_damage
from hotswap.seams import Stage
from hotswap.stream.lock import reading
from hotswap.stream.origin import origin_of
from hotswap.types import Placement, Update
from hotswap.uninterrupted import own_threads, uninterrupted
from hotswap.weights.checkpoint import Checkpoint
from hotswap.weights.roots import Allowed, roots_of
from hotswap_disk.counting import OPEN, OPENED

__all__ = ["DiskStrategy"]


class DiskStrategy:
    """Reads ``update.source``, a directory that this process can read.

    ``allowed`` judges the real path of the directory and of every file in it, and is
    called on a worker thread; None allows any place. ``pulls_first``: whoever uses it pulls what
    the last update found damaged, so that the same update may succeed later.
    """

    def __init__(self, *, allowed: Allowed | None = None, pulls_first: bool = False) -> None:
        self.allowed = allowed
        self._pulls_first = pulls_first

    @classmethod
    def from_options(cls, values: Mapping[str, object]) -> Self:
        """Make it from ``weights-root``; what lies in a ``local-root`` may be read besides.

        Raises: ValueError for a root that is no directory.
        """
        if roots_of(values, "weights-root") is None:
            return cls()
        # The server's own pulls wrote it, from a source that was allowed to them.
        return cls(allowed=roots_of(values, "weights-root", "local-root"))

    def __repr__(self) -> str:
        return f"<DiskStrategy in {self.allowed or 'any directory'}>"

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        """Open the checkpoint for as long as the context lasts; every rank reads all of it.

        Raises: UpdateRejected when it is no whole checkpoint, or outside the roots.
        """
        opening = _Opening(update.source, self.allowed, pulls_first=self._pulls_first)
        try:
            try:
                checkpoint = await anyio.to_thread.run_sync(opening.run, limiter=own_threads())
            except UpdateRejected as error:
                OPENED.labels("rejected").inc()
                if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                    # Whoever asked may see the directory, on another machine.
                    told = f"{error}; a server looks paths up on its own machine"
                    raise UpdateRejected(told) from error
                raise
            OPENED.labels("opened").inc()
            with OPEN.track_inprogress():
                yield checkpoint
        finally:
            # In a task of its own: a task that is cancelled here would never start the thread.
            await uninterrupted(anyio.to_thread.run_sync(opening.close, limiter=own_threads()))


class _Opening:
    """A checkpoint that is closed even when nobody waited for it to open.

    A task cancelled by asyncio itself leaves its worker thread running.
    """

    def __init__(self, source: str, allowed: Allowed | None, *, pulls_first: bool) -> None:
        self._source = source
        self._allowed = allowed
        self._pulls_first = pulls_first
        self._lock = threading.Lock()
        self._closed = False
        self._held = ExitStack()

    def run(self) -> Checkpoint:
        with ExitStack() as stack:
            if self._may_look():
                # A pull into the same directory waits until the update has read it.
                stack.enter_context(reading(Path(self._source)))
            with told_as_damage(self._source, allowed=self._allowed, pulls_first=self._pulls_first):
                opened = Checkpoint.open(self._source, allowed=self._allowed)
            checkpoint = stack.enter_context(closing(opened))
            # As opened, and while no pull changes it: what is known of the live weights later.
            checkpoint.origin = origin_of(checkpoint.path, checkpoint.files)
            # What pulls have put beside the files belongs to it.
            lay_log_over(checkpoint, allowed=self._allowed, pulls_first=self._pulls_first)
            with self._lock:
                if not self._closed:
                    self._held = stack.pop_all()
        return checkpoint

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._held.close()

    def _may_look(self) -> bool:
        """Whether the place is one where a lock may be looked for; opening says why it is not."""
        try:
            real = Path(os.path.realpath(self._source))
        except (OSError, ValueError):
            return False
        return bool(self._source) and (self._allowed is None or self._allowed(real))
