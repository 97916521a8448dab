"""Which version of a stream something holds, told from another one of the same number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hotswap.sparse.origin import Origin
from hotswap.stream.log import holding_in

__all__ = ["BOOT", "VersionMark", "mark_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionMark:
    """``index_digest`` is of the version's index and headers; None for version 0, the base."""

    version: int
    index_digest: str | None = None

    @classmethod
    def of(cls, origin: Origin) -> Self:
        """That of the bytes that became live."""
        return cls(version=origin.version, index_digest=origin.index_digest)

    def __str__(self) -> str:
        return f"version {self.version}"


BOOT = VersionMark(version=0)
"""What a server starts with, which is where every stream begins."""


def mark_in(local: Path) -> VersionMark | None:
    """What ``local`` says that it holds; None where no pull has left a whole version. Blocks.

    Raises: OSError.
    """
    held = holding_in(local)
    if held is None:
        return None
    state = held.state
    return VersionMark(version=state.number, index_digest=state.index_digest)
