"""Typed reads from a ``config.json``: what is missing or odd is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeGuard

import torch

__all__ = ["MOST", "Fields"]

MOST = 2**31 - 1
"""Largest count that makes sense in any field; what multiplies two of them still fits."""

_LARGEST = torch.finfo(torch.float32).max
_SHOWN = 80


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

    def is_absent(self, name: str) -> bool:
        """Whether the field is missing or null."""
        return self._content.get(name) is None

    def _odd(self, name: str, value: object, wanted: str) -> ValueError:
        seen = repr(value)
        shown = seen if len(seen) <= _SHOWN else f"{seen[:_SHOWN]}..."
        return ValueError(f"{self._where}: {name} is {shown}, wanted {wanted}")

    def count(self, name: str, default: int | None = None, *, most: int = MOST) -> int:
        """A positive integer up to ``most``."""
        wanted = f"a positive integer up to {most}"
        value = self._value(name, wanted, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self._odd(name, value, wanted)
        return value

    def number(
        self,
        name: str,
        default: float | None = None,
        *,
        least: float = -_LARGEST,
        above: float = -math.inf,
    ) -> float:
        """A number that a float32 can hold, not a boolean: ``least`` or more, above ``above``."""
        wanted = _wanted(least, above)
        value = self._value(name, wanted, default)
        if not _is_number(value) or not above < value or not least <= value <= _LARGEST:
            raise self._odd(name, value, wanted)
        return float(value)

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """A list of ``length`` numbers above 0."""
        wanted = f"{length} finite numbers above 0"
        value = self._value(name, wanted, None)
        if not isinstance(value, list | tuple) or len(value) != length:
            raise self._odd(name, value, wanted)
        if not all(_is_number(item) and 0 < item <= _LARGEST for item in value):
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


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wanted(least: float, above: float) -> str:
    if above > -math.inf:
        return f"a finite number above {above:g}"
    return "a finite number" if least == -_LARGEST else f"a finite number of at least {least:g}"
