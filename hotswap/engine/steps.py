"""What the embedded engine's thread drives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hotswap.engine.scheduler import Scheduler
from hotswap.engine.threaded import WeightSteps
from hotswap.weights.memory import trim_heap
from hotswap.weights.target import WeightTarget

__all__ = ["EngineSteps", "Recapture"]

Recapture = Callable[[bool], None]
"""Capture the graphs of the forward pass if true, else forget them: they hold addresses."""


class EngineSteps(WeightSteps[Scheduler]):
    """The scheduler, and the weights between its steps."""

    def __init__(
        self,
        scheduler: Scheduler,
        target: WeightTarget,
        *,
        eos: frozenset[int],
        recapture: Recapture = lambda _back: None,
    ) -> None:
        super().__init__(scheduler, target, eos=eos)
        self._recapture = recapture
        self._asleep: frozenset[str] = frozenset()

    def publish(self) -> None:
        """Send the chunks of the last step; what is used is known before they arrive."""
        self.scheduler.count_room()
        self.scheduler.outbox.flush()

    def sleep(self, tags: frozenset[str]) -> None:
        """See ``seams.Sleeper.sleep``. Raises: RuntimeError while not paused."""
        self._check_paused("sleep")
        if "weights" in tags:
            self._recapture(False)
            self.target.release()
        if "kv_cache" in tags:
            # No request holds any: the pause, or the one before it, has seen to that.
            self.scheduler.flush()
        self._asleep |= tags
        _give_back()

    def wake(self, tags: frozenset[str]) -> bool:
        """See ``seams.Sleeper.wake``: nothing is kept of weights.

        Raises: RuntimeError while not paused; MemoryError.
        """
        self._check_paused("wake")
        if "weights" in tags:
            self.target.restore()
        had = self._asleep
        self._asleep -= tags
        if had and not self._asleep:
            self._recapture(True)
        return False


def _give_back() -> None:
    """Let the system have what torch and malloc keep of memory that was freed."""
    trim_heap()
    cuda: Any = torch.cuda  # half of it has no types
    if cuda.is_initialized():
        cuda.empty_cache()
