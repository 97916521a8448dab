"""A target whose writes a test may stop, or make fail, at any tensor."""

from __future__ import annotations

import threading
from collections.abc import Callable

import anyio

from hotswap.engine.loading import LoadedModel
from hotswap.engine.model import fused_rules, padded_rows
from hotswap.seams import Plan
from hotswap.types import Bucket
from hotswap.weights.target import WeightTarget
from tests.process.http_client import LIMIT_S

__all__ = ["Gate", "WatchedTarget", "fail_at", "watched"]


class WatchedTarget(WeightTarget):
    """Calls ``before_write`` with the number of tensor writes so far, before each of
    them, and ``before_finish``; both on the engine's thread, and what they raise is what
    the write raises."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        before_write: Callable[[int], object],
        before_finish: Callable[[], object],
    ) -> None:
        model = loaded.model
        super().__init__(model, fused=fused_rules(model.config), padded_rows=padded_rows(model))
        self.writes = 0
        self._before_write = before_write
        self._before_finish = before_finish

    def write(self, plan: Plan, bucket: Bucket) -> None:
        """One tensor at a time."""
        for name, payload in bucket:
            self.writes += 1
            self._before_write(self.writes - 1)
            super().write(plan, [(name, payload)])

    def finish(self) -> None:
        """As any target's."""
        self._before_finish()
        super().finish()


def watched(
    loaded: LoadedModel,
    *,
    before_write: Callable[[int], object] = lambda _at: None,
    before_finish: Callable[[], object] = lambda: None,
) -> LoadedModel:
    """``loaded`` behind a :class:`WatchedTarget`."""
    target = WatchedTarget(loaded, before_write=before_write, before_finish=before_finish)
    return LoadedModel(model=loaded.model, target=target)


def fail_at(*writes: int) -> Callable[[int], None]:
    """A ``before_write`` that raises RuntimeError at these writes."""

    def check(at: int) -> None:
        if at in writes:
            raise RuntimeError(f"injected at write {at}")

    return check


class Gate:
    """Where a thread stands still until the test lets it go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def __repr__(self) -> str:
        return f"<Gate reached={self._reached.is_set()} open={self._open.is_set()}>"

    def wait(self) -> None:
        """Stand still. On a thread of the server's. Raises: TimeoutError."""
        self._reached.set()
        if not self._open.wait(LIMIT_S):
            raise TimeoutError(f"nobody opened the gate within {LIMIT_S:g} s")

    async def reached(self) -> None:
        """Wait until a thread stands here. Raises: AssertionError."""
        assert await anyio.to_thread.run_sync(self._reached.wait, LIMIT_S)

    def open(self) -> None:
        """Let everybody go on, those who come later too."""
        self._open.set()
