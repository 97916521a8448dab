"""Plain integers that say what has happened since the start."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from hotswap.errors import (
    CommandError,
    Overtaken,
    ShuttingDown,
    UpdateFailed,
    UpdateRejected,
    UpdateRolledBack,
)
from hotswap.state import Change, Command

__all__ = ["Counters", "outcome_of"]

_OUTCOMES: tuple[tuple[type[BaseException], str], ...] = (
    (UpdateRejected, "rejected"),
    (UpdateRolledBack, "rolled_back"),
    (UpdateFailed, "failed"),
    (Overtaken, "overtaken"),
    (ShuttingDown, "dropped"),
    (CommandError, "refused"),
    (asyncio.CancelledError, "cancelled"),
)


def outcome_of(error: BaseException) -> str:
    """The word under which a command that raised ``error`` is counted."""
    for kind, word in _OUTCOMES:
        if isinstance(error, kind):
            return word
    return "failed"


class Counters:
    """Counts; nothing resets them.

    ``commands``: (command, outcome), outcome being ``done``, ``overtaken``, or
    one of those of ``updates``. ``updates``: (strategy, outcome), outcome being
    ``committed``, ``rolled_forward``, ``rejected``, ``rolled_back``, ``failed``,
    ``refused``, ``dropped`` (by a shutdown), ``cancelled``, or ``empty`` (a push without a
    tensor, which changes nothing). ``states``: how often
    each state was entered.
    """

    def __init__(self) -> None:
        self.commands: Counter[tuple[str, str]] = Counter()
        self.updates: Counter[tuple[str, str]] = Counter()
        self.states: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Counters commands={self.commands.total()} updates={self.updates.total()}>"

    def as_dict(self) -> dict[str, dict[str, int]]:
        """All counts, keys joined by a slash: ``{"commands": {"pause/done": 1}, ...}``."""
        return {
            "commands": {"/".join(key): count for key, count in self.commands.items()},
            "updates": {"/".join(key): count for key, count in self.updates.items()},
            "states": {str(state): count for state, count in self.states.items()},
        }

    @contextmanager
    def counted(self, command: Command) -> Iterator[None]:
        """Count how the body ends as the outcome of ``command``."""
        try:
            yield
        except BaseException as error:
            self.commands[command, outcome_of(error)] += 1
            raise
        self.commands[command, "done"] += 1

    def count_update(self, command: Command, strategy: str, outcome: str) -> None:
        """Count one update, among the commands and among the updates."""
        self.commands[command, outcome] += 1
        self.updates[strategy, outcome] += 1

    def count_state(self, change: Change) -> None:
        """Count the state that ``change`` entered, if it is another one."""
        before, after = change.states
        if before is not after:
            self.states[after] += 1
