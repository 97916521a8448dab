"""Which weights the chunks of a push have covered.

Rules:

* A chunk is a partial update, a transaction of its own. Chunks add up until they cover every
  weight; then they have been one whole push, and the next chunk begins another.
* A full update ends the count, and so does whatever leaves the weights not whole: from then
  on only later chunks count.
* The version of a chunk says which push it belongs to: one of another version begins another
  count, and what the push before it has covered counts no more. A chunk without a version goes
  on with the count there is.
* The chunk that has completed a push may come once more: its reply was lost. It is known by its
  mark, changes nothing, and begins no count. Any other chunk does.
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
        self._version: str | None = None
        self._last: str | None = None

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

    @property
    def version(self) -> str | None:
        """The version of the push that has been begun, where its chunks have one."""
        return self._version

    def completed_by(self, plan: Plan, *, version: str | None = None) -> bool:
        """Whether all weights are covered once ``plan``, of ``version``, has been written too."""
        return self._with(plan, version) == self._required

    def add(self, plan: Plan, *, version: str | None = None, mark: str | None = None) -> None:
        """``plan`` of ``version`` has been written; ``mark`` is that of its payload."""
        if mark is not None and mark == self._last:
            return
        covered, named = self._with(plan, version), version or self._version
        self.clear()
        if covered == self._required:
            self._last = mark
        else:
            self._covered, self._version = covered, named

    def clear(self) -> None:
        """Begin again."""
        self._covered, self._version, self._last = frozenset(), None, None

    def note_change(self, change: Change) -> None:
        """An observer of the machine: what overwrites or releases the weights takes what chunks
        have written with it, whoever waits for that command's end."""
        weights = change.after.weights
        is_reset = change.command is Command.RESET and change.outcome is Outcome.DONE
        is_lost = weights is not Weights.WHOLE and weights is not change.before.weights
        if is_reset or is_lost or change.outcome is Outcome.TORN:
            self.clear()

    def _with(self, plan: Plan, version: str | None) -> frozenset[str]:
        written = self._required - set(plan.missing)
        if version is not None and self._version is not None and version != self._version:
            return written
        return self._covered | written
