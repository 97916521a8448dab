"""Writing logs into the files that they are on while nobody waits for that.

Rules:

* One directory at a time, on a thread of its own that gives way to forward passes.
* It waits until a directory was left alone for a moment, and makes room at once for who wants it:
  what it has prepared is thrown away, and it tries again later.
* Whatever goes wrong is the next pull's to find: a log that stays is no fault.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from hotswap.errors import UpdateRejected
from hotswap.niceness import give_way
from hotswap.pulls.logs import LogSizes
from hotswap.sparse.cache import PatchCache
from hotswap.stream.append import LogLimits
from hotswap.stream.errors import LocalBusy
from hotswap.stream.log import holding_in
from hotswap.stream.materialize import materialize
from hotswap.stream.state import Reserved
from hotswap.stream.stored import StoredTensors
from hotswap.weights.roots import Allowed

__all__ = ["Compactor"]

_log = logging.getLogger("hotswap.pull")

_IDLE_S = 2.0
"""An update follows a pull as a rule; it is let go first."""

_END_S = 5.0
"""How long a process that ends waits for what is being written."""


class Compactor:
    """Brings logs into files once they are half as long as they may be. Any thread.

    ``sizes`` hears how long they are then.
    """

    def __init__(
        self,
        sizes: LogSizes,
        *,
        threads: int,
        patches: PatchCache | None = None,
        limits: LogLimits | None = None,
        idle_s: float = _IDLE_S,
        done: Callable[[Path], None] | None = None,
    ) -> None:
        self._sizes = sizes
        self._threads = threads
        self._patches = patches
        self._limits = (limits or LogLimits()).half()
        self._idle_s = idle_s
        self._done = done
        self._lock = threading.Lock()
        self._due: OrderedDict[Path, Allowed | None] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def __repr__(self) -> str:
        return f"<Compactor {len(self._due)} directories due>"

    def look(self, directory: Path, *, allowed: Allowed | None = None) -> None:
        """A pull into ``directory`` is through: see to its log if that is long. Raises: OSError."""
        if self._stopping.is_set() or not self._is_long(directory, allowed):
            return
        with self._lock:
            self._due[directory] = allowed
            if self._thread is None:
                # A daemon: a process that ends waits for it in ``stop``, and no longer.
                self._thread = threading.Thread(
                    target=self._run, name="hotswap-compact", daemon=True
                )
                atexit.register(self.stop)
                self._thread.start()

    def stop(self, *, wait_s: float = _END_S) -> None:
        """End, after what is being written, for which this waits no longer; what is prepared is
        thrown away. Idempotent."""
        self._stopping.set()
        thread = self._thread
        if thread is not None:
            thread.join(wait_s)

    def _is_long(self, directory: Path, allowed: Allowed | None) -> bool:
        held = holding_in(directory)
        if held is None or held.log is None:
            return False
        try:
            with StoredTensors.at(directory, allowed=allowed, with_log=True) as stored:
                of_bytes = sum(stored.lengths.values())
        except UpdateRejected:
            # Damaged, or another process is at it: files come and go where nobody holds the lock.
            return False
        return not self._limits.allow(held, 1, of_bytes=of_bytes)

    def _run(self) -> None:
        give_way()
        while True:
            if self._stopping.wait(self._idle_s):
                return
            with self._lock:
                if not self._due:
                    self._thread = None
                    atexit.unregister(self.stop)
                    return
                # Taken out first: a pull that is through meanwhile puts it in again.
                directory, allowed = self._due.popitem(last=False)
            if not self._is_through(directory, allowed):
                with self._lock:
                    self._due.setdefault(directory, allowed)

    def _is_through(self, directory: Path, allowed: Allowed | None) -> bool:
        """False for a directory that somebody else wants, now or since a moment."""
        try:
            if self._is_long(directory, allowed) and not Reserved(directory).is_pending:
                materialize(
                    directory,
                    allowed=allowed,
                    threads=self._threads,
                    lock_timeout_s=0.0,
                    give_way=True,
                    patches=self._patches,
                    stop=self._stopping.is_set,
                )
            self._sizes.look(directory)
        except LocalBusy:
            return False
        except (UpdateRejected, OSError) as error:
            _log.warning("%s: its log stays beside its files: %s", directory, error)
        if self._done is not None:
            self._done(directory)
        return True
