"""What a verification found."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from hotswap.errors import UpdateRejected

__all__ = ["Fault", "Faults", "Verified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong: ``kind`` is the class of the error that a pull would raise.

    ``where`` is a version's directory, ``aggregate``, ``base`` or the local one; ``tensor`` is
    None when it is not about one.
    """

    where: str
    kind: str
    message: str
    tensor: str | None = None
    retryable: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """``versions`` were checked against every checksum that they have, ``checks`` in all.

    ``checked_bytes`` are those that were hashed, of tensors. ``note`` says what there was no
    checksum for.
    """

    path: str
    versions: tuple[int, ...]
    checks: int
    checked_bytes: int
    faults: tuple[Fault, ...]
    note: str | None = None

    @property
    def retryable(self) -> bool:
        """Whether everything that is wrong may be right later."""
        return all(fault.retryable for fault in self.faults)


class Faults:
    """Collects faults and counts checks. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found = list[Fault]()
        self.checks: int = 0
        self.checked_bytes: int = 0

    def __repr__(self) -> str:
        return f"<Faults {len(self._found)} in {self.checks} checks>"

    @property
    def found(self) -> tuple[Fault, ...]:
        """By place and tensor."""
        return tuple(sorted(self._found, key=lambda fault: (fault.where, fault.tensor or "")))

    @property
    def places(self) -> frozenset[str]:
        """Where something is wrong."""
        return frozenset(fault.where for fault in self._found)

    def checked(self, size: int) -> None:
        """``size`` bytes were hashed."""
        with self._lock:
            self.checks += 1
            self.checked_bytes += size

    def add(self, where: str, error: Exception, tensor: str | None = None) -> None:
        """``error`` is what is wrong there."""
        retryable = isinstance(error, UpdateRejected) and error.retryable
        fault = Fault(
            where=where,
            kind=type(error).__name__,
            message=str(error),
            tensor=tensor,
            retryable=retryable,
        )
        with self._lock:
            self._found.append(fault)
