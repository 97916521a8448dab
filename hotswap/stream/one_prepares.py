"""Short steps of Python, that several threads would only hinder each other in."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["one_prepares"]


class _Turn:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def forget(self) -> None:
        """In a forked child it may be held by a thread that is not there."""
        self.lock = threading.Lock()


_turn = _Turn()
os.register_at_fork(after_in_child=_turn.forget)


@contextmanager
def one_prepares() -> Iterator[None]:
    """One thread of the process at a time is in the body."""
    with _turn.lock:
        yield
