"""The directories that weights may come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

__all__ = ["Allowed", "Roots", "roots_of"]

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


def roots_of(values: Mapping[str, object], *options: str) -> Roots | None:
    """The roots that several ``options`` name together; None when none of them names any.

    Raises: ValueError for a root that is no directory, or for no list of them.
    """
    paths = list[Path]()
    for option in options:
        directories = values.get(option) or ()
        if not isinstance(directories, Iterable) or isinstance(directories, str):
            raise ValueError(f"{option} is {directories!r}, wanted several directories")
        names = [str(directory) for directory in directories]
        if not all(name.strip() for name in names):
            raise ValueError(f"{option} is {names}, wanted directories and no empty name")
        roots = Roots.of(names)
        for root in roots.paths:
            if not root.is_dir():
                raise ValueError(f"{option} {root} is no directory; create it first")
        paths += roots.paths
    return Roots(tuple(paths)) if paths else None
