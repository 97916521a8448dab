"""The one error of this package."""

from __future__ import annotations

from hotswap.errors import UpdateRejected

__all__ = ["PayloadRefused", "shown"]

_SHOWN_CHARACTERS = 100


class PayloadRefused(UpdateRejected):
    """A payload says something that no tensor, bucket or handle says; the message names it."""


def shown(value: object) -> str:
    """``value`` for a message: quoted, without control characters, cut short."""
    text = repr(value[:_SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
