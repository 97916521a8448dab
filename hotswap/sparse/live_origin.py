"""Which bytes the live weights are, for as long as nothing else has touched them.

Rule: only a full update says where weights come from. Whatever else changes them, or what
they are called, and whatever leaves them not whole, makes them weights of unknown origin.
"""

from __future__ import annotations

from hotswap.seams import Plan
from hotswap.sparse.live import layout_of
from hotswap.sparse.origin import Base, Origin
from hotswap.state import Change, Command, Outcome, Weights
from hotswap.types import WeightStamp
from hotswap.weights.plan import TargetPlan

__all__ = ["LiveOrigin"]

_HARMLESS = (
    Command.PAUSE,
    Command.RESUME,
    Command.FLUSH,
    # Weights that lose their memory are not whole, which counts.
    Command.SLEEP,
    Command.WAKE,
    # Those that write say themselves what they wrote.
    Command.UPDATE,
    Command.SWAP,
)


class LiveOrigin:
    """The origin of the weights of one controller. Event-loop thread only."""

    def __init__(self, boot: Base | None = None, *, epoch: int = 0) -> None:
        self._origin: Origin | Base | None = boot
        self._epoch = epoch
        self._layout: tuple[object, ...] | None = None

    def __repr__(self) -> str:
        return f"<LiveOrigin {self._origin or 'unknown'} epoch {self._epoch}>"

    def adopt(self, origin: Origin | None, plan: Plan, *, epoch: int) -> None:
        """The weights of ``epoch`` were loaded from ``origin``, by ``plan``."""
        self._origin, self._epoch = origin, epoch
        self._layout = layout_of(plan) if isinstance(plan, TargetPlan) else None

    def forget(self) -> None:
        """Nobody knows any more."""
        self._origin = None

    def of(self, stamp: WeightStamp, plan: Plan) -> Origin | Base | None:
        """Where the weights of ``stamp`` come from, which ``plan`` is about; None: not known."""
        if stamp.epoch != self._epoch or not isinstance(plan, TargetPlan):
            return None
        if self._layout is not None and self._layout != layout_of(plan):
            return None
        return self._origin

    def is_still(self, origin: Origin | Base, stamp: WeightStamp) -> bool:
        """Whether the weights are those of ``stamp`` and come from ``origin``."""
        return stamp.epoch == self._epoch and self._origin == origin

    def note_change(self, change: Change) -> None:
        """An observer of the machine."""
        other = change.outcome is Outcome.DONE and change.command not in _HARMLESS
        if other or change.outcome is Outcome.TORN or change.after.weights is not Weights.WHOLE:
            self.forget()
