"""Which weights the chunks of a push have covered.

Rules:

* A chunk is a partial update, a transaction of its own. Chunks add up until they cover every
  weight; then they have been one whole push, and the next chunk begins another.
* A full update ends the count, and so does whatever leaves the weights not whole: from then
  on only later chunks count.
* Nothing in a chunk says which push it belongs to. One that comes again after the last of its
  push begins the next count, and a push that its sender leaves without a word goes on in the
  next one: senders end such a push with a full update.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotswap.seams import Plan
from hotswap.state import Change, Command, Outcome, Weights

__all__ = ["Coverage"]


class Coverage:
    """Counts for one model, whose full checkpoint has the names ``required``.

    Event-loop thread only.
    """

    def __init__(self, required: Iterable[str]) -> None:
        self._required = frozenset(required)
        self._covered: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"<Coverage {self.covered} of {self.of}>"

    @property
    def covered(self) -> int:
        """Weights that chunks have written, of a push that has not covered all of them."""
        return len(self._covered)

    @property
    def of(self) -> int:
        """Weights that there are."""
        return len(self._required)

    @property
    def begun(self) -> bool:
        """Whether a push has been begun and not ended: old and new weights stand together."""
        return bool(self._covered)

    def completed_by(self, plan: Plan) -> bool:
        """Whether all weights are covered once ``plan`` has been written too."""
        return self._with(plan) == self._required

    def add(self, plan: Plan) -> None:
        """``plan`` has been written."""
        covered = self._with(plan)
        self._covered = frozenset() if covered == self._required else covered

    def clear(self) -> None:
        """Begin again."""
        self._covered = frozenset()

    def note_change(self, change: Change) -> None:
        """An observer of the machine: what overwrites or releases the weights takes what chunks
        have written with it, whoever waits for that command's end."""
        weights = change.after.weights
        is_reset = change.command is Command.RESET and change.outcome is Outcome.DONE
        is_lost = weights is not Weights.WHOLE and weights is not change.before.weights
        if is_reset or is_lost or change.outcome is Outcome.TORN:
            self.clear()

    def _with(self, plan: Plan) -> frozenset[str]:
        return self._covered | (self._required - set(plan.missing))
