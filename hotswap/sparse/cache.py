"""Patches that pulls left, for the updates that follow: bounded in bytes, by origin.

Rule: a patch says from which bytes to which it leads, and nothing in here asks for a label.
What is not found means that the whole checkpoint is loaded.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable

from hotswap.sparse.origin import Base, Origin
from hotswap.sparse.patch import Patch

__all__ = ["PATCHES", "USUAL_BYTES", "PatchCache"]

_log = logging.getLogger("hotswap.pull")

USUAL_BYTES = 2**30
"""The bound of a process that was told none."""


class PatchCache:
    """Holds at most ``limit_bytes`` of patches; the oldest go first. Any thread."""

    def __init__(self, limit_bytes: int = USUAL_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._patches: OrderedDict[Origin, Patch] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PatchCache {len(self)} patches, {self.size_bytes} of {self._limit_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._patches)

    @property
    def size_bytes(self) -> int:
        """What the patches take."""
        with self._lock:
            return self._used()

    @property
    def limit_bytes(self) -> int:
        """What they may take; 0 keeps none."""
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int) -> None:
        with self._lock:
            self._limit_bytes = limit_bytes
            self._shrink(0)

    def keep(self, patch: Patch) -> None:
        """Take ``patch``, in the place of one from the same bytes; not one that is too large."""
        with self._lock:
            size = patch.size_bytes
            if size > self._limit_bytes:
                _log.info("%r is more than the %d bytes for patches", patch, self._limit_bytes)
                return
            self._patches.pop(patch.before, None)
            self._shrink(size)
            self._patches[patch.before] = patch

    def way(self, live: Origin | Base, wanted: Origin) -> tuple[Patch, ...] | None:
        """The patches from ``live`` to ``wanted``, in order, at least one; None without a way."""
        with self._lock:
            step = self._first(live, wanted)
            way: list[Patch] = []
            while step is not None and step not in way:
                way.append(step)
                if step.after == wanted:
                    return tuple(way)
                step = self._patches.get(step.after)
            return None

    def forget(self, patches: Iterable[Patch]) -> None:
        """Give up ``patches``: they are applied."""
        with self._lock:
            for patch in patches:
                if self._patches.get(patch.before) is patch:
                    del self._patches[patch.before]

    def clear(self) -> None:
        """Give up all of them."""
        with self._lock:
            self._patches.clear()

    def _first(self, live: Origin | Base, wanted: Origin) -> Patch | None:
        if isinstance(live, Origin):
            return self._patches.get(live)
        # Copies of the base may lie in several directories.
        return next(
            (
                patch
                for before, patch in self._patches.items()
                if before.is_as(live) and before.directory == wanted.directory
            ),
            None,
        )

    def _used(self) -> int:
        return sum(patch.size_bytes for patch in self._patches.values())

    def _shrink(self, room: int) -> None:
        while self._patches and self._used() + room > self._limit_bytes:
            self._patches.popitem(last=False)


PATCHES = PatchCache()
"""Those of this process: the memory that they are bounded by is the process's."""
