"""What the engine's thread drives."""

from __future__ import annotations

from hotswap.engine.threaded import WeightSteps
from hotswap.weights.target import WeightTarget
from hotswap_transformers.scheduler import BatchScheduler

__all__ = ["BatchSteps"]


class BatchSteps(WeightSteps[BatchScheduler]):
    """The scheduler, and the weights between its steps.

    ``used_tokens`` and ``cached_blocks`` are what the cache held after the last step, for
    every thread.
    """

    def __init__(
        self, scheduler: BatchScheduler, target: WeightTarget, *, eos: frozenset[int]
    ) -> None:
        super().__init__(scheduler, target, eos=eos)
        self.used_tokens = 0
        self.cached_blocks = 0

    def publish(self) -> None:
        """Send the chunks of the last step; what is used is known before they arrive."""
        self.used_tokens = self.scheduler.batching.used_tokens
        self.cached_blocks = self.scheduler.batching.entries
        self.scheduler.outbox.flush()
