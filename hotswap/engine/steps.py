"""What the engine's thread drives: the scheduler, and the weights between its steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hotswap.engine.gate import GateState
from hotswap.engine.model_plan import ModelPlan
from hotswap.engine.scheduler import Scheduler
from hotswap.seams import Plan
from hotswap.types import Bucket, WeightStamp
from hotswap.weights.target import WeightTarget

__all__ = ["EngineSteps"]


class EngineSteps:
    """Satisfies ``loop.Steps``. Engine thread only, ``eos`` excepted.

    ``eos`` are the tokens that end a text: those of the weights that were committed.
    """

    def __init__(self, scheduler: Scheduler, target: WeightTarget, *, eos: frozenset[int]) -> None:
        self.scheduler = scheduler
        self.eos: frozenset[int] = eos
        self._target = target
        self._written: Plan | None = None

    def __repr__(self) -> str:
        return f"<EngineSteps {self.scheduler!r}>"

    @property
    def has_work(self) -> bool:
        """Whether there is a forward pass to run."""
        return self.scheduler.has_work

    def step(self) -> None:
        """Run one forward pass."""
        self.scheduler.step()

    def publish(self) -> None:
        """Send the chunks of the last step; what is used is known before they arrive."""
        self.scheduler.count_room()
        self.scheduler.outbox.flush()

    def shut(self, error: BaseException | None) -> None:
        """End every request, and every pause that still waits."""
        self.scheduler.end_all("abort" if error is None else "error")
        self.scheduler.gate.fail(RuntimeError("the engine's thread has ended"))

    def write(self, plan: Plan, bucket: Bucket) -> None:
        """Copy a bucket into the live weights. Raises: RuntimeError while not paused."""
        self._check_paused("write")
        self._written = plan
        self._target.write(plan, bucket)

    def commit(self, stamp: WeightStamp) -> None:
        """Finish the writes; adopt ``stamp``, and the ends of text that came with them.

        Raises: RuntimeError while not paused.
        """
        self._check_paused("commit")
        self._target.finish()
        self.scheduler.commit(stamp)
        # Only now: an update that failed half way leaves them as they were.
        written, self._written = self._written, None
        if isinstance(written, ModelPlan) and written.eos_token_ids is not None:
            self.eos = written.eos_token_ids

    def reset(self, skipped: Sequence[str]) -> tuple[str, ...]:
        """Fill weights with noise; which. Raises: RuntimeError while not paused."""
        self._check_paused("reset")
        return self._target.reset(skipped)

    def read(self, name: str, rows: int) -> torch.Tensor:
        """First rows of a weight, a copy on the CPU. Raises: KeyError."""
        return self._target.read(name, rows)

    def checksums(self) -> dict[str, str]:
        """Of every parameter and buffer."""
        return self._target.checksums()

    def _check_paused(self, what: str) -> None:
        state = self.scheduler.gate.state
        if state is not GateState.CLOSED:
            raise RuntimeError(f"{what} while the gate is {state}; pause the engine first")
