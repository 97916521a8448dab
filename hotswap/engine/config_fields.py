"""Typed reads from a ``config.json``: what is missing or odd is named."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Fields"]


class Fields:
    """One JSON object, and what to call it in messages.

    Each read takes a default for a field that is absent or null; without one the
    field is required. Raises: ValueError with the field, what it is, what was wanted.
    """

    def __init__(self, content: Mapping[str, object], where: str = "config.json") -> None:
        self._content = content
        self._where = where

    def _value(self, name: str, wanted: str, default: object) -> object:
        value = self._content.get(name)
        if value is None:
            value = default
        if value is None:
            raise ValueError(f"{self._where}: {name} is missing, wanted {wanted}")
        return value

    def _odd(self, name: str, value: object, wanted: str) -> ValueError:
        return ValueError(f"{self._where}: {name} is {value!r}, wanted {wanted}")

    def count(self, name: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._value(name, "a positive integer", default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._odd(name, value, "a positive integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number, not a boolean."""
        value = self._value(name, "a number", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._odd(name, value, "a number")
        return float(value)

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """A list of ``length`` numbers."""
        wanted = f"{length} numbers"
        value = self._value(name, wanted, None)
        if not isinstance(value, list | tuple) or len(value) != length:
            raise self._odd(name, value, wanted)
        if any(isinstance(item, bool) or not isinstance(item, int | float) for item in value):
            raise self._odd(name, value, wanted)
        return tuple(float(item) for item in value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._value(name, "true or false", default)
        if not isinstance(value, bool):
            raise self._odd(name, value, "true or false")
        return value

    def token_ids(self, name: str) -> frozenset[int]:
        """One id, a list of ids, or nothing."""
        value = self._content.get(name)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) for item in items):
            raise self._odd(name, value, "a token id or a list of them")
        return frozenset(items)
