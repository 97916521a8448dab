"""The directories that weights may come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

__all__ = ["Allowed", "Roots"]

Allowed: TypeAlias = Callable[[Path], bool]
"""Decides on a real path (absolute, every symbolic link resolved)."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Allows what lies in one of ``paths`` or is one of them. No path allows nothing."""

    paths: tuple[Path, ...]

    @classmethod
    def of(cls, directories: Iterable[str | os.PathLike[str]]) -> Self:
        """Resolve ``directories`` now: a root that is re-linked later does not move."""
        return cls(tuple(Path(os.path.realpath(directory)) for directory in directories))

    def __call__(self, real: Path) -> bool:
        return any(real.is_relative_to(root) for root in self.paths)

    def __str__(self) -> str:
        return ", ".join(map(str, self.paths)) or "(none)"
