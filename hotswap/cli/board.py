"""What ``hotswap watch`` knows: the last look, and how the last updates ended. No I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotswap.client.fields import Fields

if TYPE_CHECKING:
    from hotswap.client import ServerEvent, ServerState

__all__ = ["Board", "PastUpdate"]

_GOOD = ("committed", "rolled_forward")
_BAD = ("rejected", "rolled_back", "failed", "refused", "dropped", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class PastUpdate:
    """One update that is over; costs in milliseconds, None where it was not done."""

    number: int
    outcome: str
    source: str
    version: str | None
    staged_ms: float | None = None
    paused_ms: float | None = None
    reason: str | None = None

    def __str__(self) -> str:
        name = f"{self.version or '(no name)'} from {self.source}"
        if self.staged_ms is None or self.paused_ms is None:
            return (
                f"update {self.number} {self.outcome}: {name}: {self.reason or 'no reason given'}"
            )
        costs = f"staged {self.staged_ms:.1f} ms, paused {self.paused_ms:.1f} ms"
        return f"update {self.number} {self.outcome}: {name}: {costs}"


class Board:
    """Told of looks and events; keeps the newest updates."""

    def __init__(self, *, keep: int = 8) -> None:
        self.seen: ServerState | None = None
        self.trouble: str | None = "not asked yet"
        self.updates: deque[PastUpdate] = deque(maxlen=keep)

    def __repr__(self) -> str:
        return f"<Board {self.trouble or 'answered'} {len(self.updates)} updates>"

    def see(self, seen: ServerState) -> None:
        """The server answered."""
        self.seen, self.trouble = seen, None

    def miss(self, reason: str) -> None:
        """It did not."""
        self.trouble = reason

    def hear(self, event: ServerEvent) -> PastUpdate | None:
        """The update that ``event`` ends, if it does. Raises: ReplyMalformed."""
        if event.name != "update" or event.tells.get("phase") not in (*_GOOD, *_BAD):
            return None
        ended = _ended(Fields(event.tells, at=f"event {event.id}"))
        self.updates.append(ended)
        return ended

    def line(self) -> str:
        """Everything that people look for, in one line."""
        if self.seen is None or self.trouble is not None:
            return f"no answer: {self.trouble}"
        seen = self.seen
        parts = [seen.state or ("ready" if seen.ready else "not ready")]
        parts.append(f"version {seen.weight_version or '(no name)'}")
        if seen.weight_epoch is not None:
            parts.append(f"epoch {seen.weight_epoch}")
        if seen.running is not None:
            parts.append(f"{seen.running} running, {seen.waiting} waiting")
        parts += [f"{update} {update.source}" for update in seen.updates]
        return "  ".join(parts)


def _ended(told: Fields) -> PastUpdate:
    return PastUpdate(
        number=told.count("update") or 0,
        outcome=told.text("phase") or "",
        source=told.text("source") or "",
        version=told.label("weight_version") or told.label("version"),
        staged_ms=told.number("staged_ms"),
        paused_ms=told.number("paused_ms"),
        reason=told.text("reason"),
    )
