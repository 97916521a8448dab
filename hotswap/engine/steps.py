"""What the embedded engine's thread drives."""

from __future__ import annotations

from hotswap.engine.scheduler import Scheduler
from hotswap.engine.threaded import WeightSteps

__all__ = ["EngineSteps"]


class EngineSteps(WeightSteps[Scheduler]):
    """The scheduler, and the weights between its steps."""

    def publish(self) -> None:
        """Send the chunks of the last step; what is used is known before they arrive."""
        self.scheduler.count_room()
        self.scheduler.outbox.flush()
