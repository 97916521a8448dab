"""A plug-in with one planted fault: what is wrong, which test finds it, and what that says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Planted", "explained"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted(Generic[T]):
    """``make`` makes what is broken; ``test`` fails for it, and its message has ``says`` in it."""

    make: Callable[[], T]
    test: str
    says: str


def explained(error: BaseException | None, says: str) -> str:
    """The message of a test that has failed: it has to name the fault and what to do about it."""
    assert isinstance(error, AssertionError), repr(error)
    found, _, todo = str(error).rpartition("; ")
    assert len(found) > 20, error
    assert len(todo) > 15, error
    assert re.search(says, found), f"{says!r} is not in: {error}"
    return str(error)
