"""The one error of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotswap.errors import UpdateRejected

if TYPE_CHECKING:
    from hotswap.wire.sent import SharedStorage

__all__ = ["PayloadRefused", "shown"]

_SHOWN_CHARACTERS = 100


class PayloadRefused(UpdateRejected):
    """A payload says something that no tensor, bucket or handle says; the message names it.

    ``segments`` is the shared memory that it names all the same, which whoever received the
    payload has to let go.
    """

    segments: frozenset[SharedStorage] = frozenset()


def shown(value: object) -> str:
    """``value`` for a message: quoted, without control characters, cut short."""
    text = repr(value[:_SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
