"""Memory put by for the bookkeeping of an update.

Whoever sizes a machine, or a container's limit, by "what the server has, and one
checkpoint" is not to lose the server to the plan, the headers and the threads of an
update: what these need is held from the start and let go when an update begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hotswap.weights.memory import Memory

__all__ = ["Reserve"]

# Names, headers, plan and staged tensors were measured at 1.6 kB a tensor; threads, the
# request and its reply do not depend on the model.
_PER_TENSOR_BYTES = 2048
_FIXED_BYTES = 2**19


class Reserve:
    """Holds memory for an update of ``tensors`` tensors, except while one is ``lent``."""

    def __init__(self, tensors: int) -> None:
        self._size_bytes = _FIXED_BYTES + tensors * _PER_TENSOR_BYTES
        self._held: Memory | None = None
        self._borrowers = 0
        self._hold()

    def __repr__(self) -> str:
        return f"<Reserve {self._size_bytes} bytes{'' if self._held else ' lent'}>"

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let the memory go for as long as the body runs; bodies may overlap."""
        self._borrowers += 1
        if self._held is not None:
            self._held.close()
            self._held = None
        try:
            yield
        finally:
            self._borrowers -= 1
            if not self._borrowers:
                self._hold()

    def _hold(self) -> None:
        try:
            self._held = Memory(self._size_bytes)
        except MemoryError:
            # Nothing to put by; an update will say so itself, if it lacks memory then.
            return
        self._held.touch()
