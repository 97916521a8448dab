"""A state change in the log: one line for people, the same as fields for programs."""

from __future__ import annotations

from hotswap.state import Change

__all__ = ["fields_of", "line_of"]


def line_of(change: Change) -> str:
    """``serving -> paused: pause done (gate abort, weights whole, ...)``."""
    before, after = change.states
    facts = change.after
    return (
        f"{before} -> {after}: {change.command} {change.outcome or 'begun'} "
        f"(gate {facts.gate or 'open'}, weights {facts.weights}, kv {facts.kv})"
    )


def fields_of(change: Change) -> dict[str, object]:
    """Both states, command, outcome, and the facts after it."""
    before, after = change.states
    facts = change.after
    return {
        "old_state": before,
        "state": after,
        "command": change.command,
        "outcome": change.outcome,
        "gate": facts.gate or "open",
        "weights": facts.weights,
        "kv": facts.kv,
    }
