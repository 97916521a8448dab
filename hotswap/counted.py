"""Numbers of things, as people write them."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, thing: str) -> str:
    """``1 version``, ``2 versions``: for things whose plural takes an s."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
