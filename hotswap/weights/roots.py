"""The directories that weights may come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

from hotswap.object_url import ObjectUrl, is_url

__all__ = ["Allowed", "Roots", "roots_of"]

Allowed: TypeAlias = Callable[[Path], bool]
"""Decides on a real path (absolute, every symbolic link resolved)."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Allows what lies in one of ``paths`` or is one of them. No path allows nothing.

    ``urls`` are roots of sources that are no directories.
    """

    paths: tuple[Path, ...]
    urls: tuple[ObjectUrl, ...] = ()

    @classmethod
    def of(cls, directories: Iterable[str | os.PathLike[str]]) -> Self:
        """Resolve ``directories`` now: a root that is re-linked later does not move."""
        return cls(tuple(Path(os.path.realpath(directory)) for directory in directories))

    def __call__(self, real: Path) -> bool:
        return any(real.is_relative_to(root) for root in self.paths)

    def allow_url(self, url: ObjectUrl) -> bool:
        """Whether ``url`` is one of ``urls``, or lies below one."""
        return any(url.is_in(root) for root in self.urls)

    def __str__(self) -> str:
        return ", ".join(map(str, (*self.paths, *self.urls))) or "(none)"


def roots_of(values: Mapping[str, object], *options: str, urls: bool = False) -> Roots | None:
    """The roots that several ``options`` name together; None when none of them names any.

    ``urls``: they may be such as s3://bucket/prefix too. Raises: ValueError for a root that is
    no directory, or for no list of them.
    """
    paths, found = list[Path](), list[ObjectUrl]()
    for option in options:
        directories = values.get(option) or ()
        if not isinstance(directories, Iterable) or isinstance(directories, str):
            raise ValueError(f"{option} is {directories!r}, wanted several directories")
        names = [str(directory) for directory in directories]
        if not all(name.strip() for name in names):
            raise ValueError(f"{option} is {names}, wanted directories and no empty name")
        if urls:
            found += [ObjectUrl.parse(name) for name in names if is_url(name)]
            names = [name for name in names if not is_url(name)]
        roots = Roots.of(names)
        for root in roots.paths:
            if not root.is_dir():
                raise ValueError(f"{option} {root} is no directory; create it first")
        paths += roots.paths
    return Roots(tuple(paths), tuple(found)) if paths or found else None
