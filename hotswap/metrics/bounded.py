"""Label values that clients may choose, bounded in number and in length."""

from __future__ import annotations

from hotswap.foreign import words_of

__all__ = ["OTHER", "BoundedLabel"]

OTHER = "other"
"""The value that stands for every one past the bound."""


class BoundedLabel:
    """Lets the first ``limit`` different values through; any later one is ``other``.

    Each label value is a time series for ever, here and in every Prometheus.
    """

    def __init__(self, *, limit: int = 32, max_characters: int = 64) -> None:
        self._limit = limit
        self._max_characters = max_characters
        self._known: set[str] = set()

    def __repr__(self) -> str:
        return f"<BoundedLabel {len(self._known)} of {self._limit}>"

    def __call__(self, value: str) -> str:
        """``value``, cut short, or ``other``."""
        value = words_of(value)[: self._max_characters]
        if value in self._known:
            return value
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(value)
        return value
