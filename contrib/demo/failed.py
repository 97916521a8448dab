"""The one way in which the demo gives up: a sentence for the person who started it."""

from __future__ import annotations

__all__ = ["DemoFailed"]


class DemoFailed(Exception):
    """What was seen, what was wanted, what to do: printed as the demo's last line."""
