"""How long a client waits: for its reply, or for the next event of its stream."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from hotswap.http.errors import GenerateTimeout

__all__ = ["Patience"]

T = TypeVar("T")


class Patience:
    """One wait, which begins now and ends after ``limit_s``; never for 0."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s or math.inf
        self._scope = anyio.CancelScope()
        self.renew()

    def __repr__(self) -> str:
        return f"<Patience {self._limit_s:g} s>"

    def renew(self) -> None:
        """Something has come: the wait begins anew."""
        self._scope.deadline = anyio.current_time() + self._limit_s

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """What ``work`` returns; once. Raises: GenerateTimeout when its time was over first."""
        with self._scope:
            return await work()
        raise GenerateTimeout(
            f"nothing came for {self._limit_s:g} s (--generate-timeout-s), so the request has "
            "been cancelled; retry later, ask for fewer tokens, or have the server wait longer"
        )
