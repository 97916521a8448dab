"""Where live weights come from: which bytes, and not what somebody calls them.

Two origins are equal when a directory was not touched between two looks at it: the state
that a pull left, which has a checksum of every tensor, and inode, size and times of every
file of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Base", "FileMark", "Origin"]

FileMark: TypeAlias = tuple[str, int, int, int, int]
"""Name, inode, size in bytes, time of the last write and of the last change (ns)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The checkpoint that a server was started with, which is version 0 of every stream.

    ``digest`` is that of a ``RecordedBase``.
    """

    path: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the pulled ``directory`` (a real path) held when somebody looked.

    ``index_digest`` is that of the applied version, None for version 0, whose ``base`` has the
    same tensors. ``state_digest`` is of all that the last pull wrote down.
    """

    directory: str
    version: int
    index_digest: str | None
    state_digest: str
    files: tuple[FileMark, ...]
    base: Base | None = None

    def is_as(self, live: Origin | Base) -> bool:
        """Whether it has the tensors of ``live``, to the bit."""
        return self == live or (self.base is not None and self.base == live)

    def __str__(self) -> str:
        return f"{self.directory} at version {self.version} ({self.index_digest or 'the base'})"
