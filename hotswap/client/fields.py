"""The fields of a reply, each of the type that was promised or an error that says otherwise.

Rule: a field that is not there, or null, is one that the server does not tell. One of another
type comes from something that is no server of ours, and nothing is made of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, TypeVar

from hotswap.client.errors import ReplyMalformed

__all__ = ["Fields", "malformed"]

T = TypeVar("T")

_SHOWN = 80
_ABSURD = 10**300


def malformed(at: str, *, seen: str, wanted: str) -> ReplyMalformed:
    """The error for a reply of ``at`` that nobody can use."""
    return ReplyMalformed(
        f"{at}: the server answered with {seen}, wanted {wanted}, as servers of hotswap and SGLang "
        "send it; look what is at this address, and whether its version and this client's fit"
    )


class Fields:
    """Reads ``body``, an object in a reply of ``at``; ``within`` is where in it.

    Every method raises ReplyMalformed.
    """

    def __init__(
        self,
        body: Mapping[str, Any],
        *,
        at: str,
        within: str = "",
        hide: Callable[[str], str] = str,
    ) -> None:
        """``hide`` takes the client's keys out of what an error repeats."""
        self.body = body
        self._at = at
        self._within = within
        self._hide = hide

    def __repr__(self) -> str:
        return f"<Fields {self._within or 'of a reply'} of {self._at}>"

    def text(self, name: str) -> str | None:
        """A text."""
        return self._found(name, "a text", _is_text)

    def label(self, name: str) -> str | None:
        """A text, or a whole number as one."""
        value = self._found(name, "a text", _is_label)
        return None if value is None else str(value)

    def count(self, name: str) -> int | None:
        """A whole number."""
        return self._found(name, "a whole number", _is_count)

    def number(self, name: str) -> float | None:
        """A number that is finite."""
        return self._found(name, "a number", _is_number)

    def flag(self, name: str) -> bool | None:
        """True or false."""
        return self._found(name, "true or false", _is_flag)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty where there is none."""
        return tuple(self._listed(name, "a list of texts", _is_text))

    def counts(self, name: str) -> int | None:
        """A whole number, or the sum of a list of them."""
        if isinstance(self.body.get(name), list):
            return sum(self._listed(name, "a whole number, or a list of them", _is_count))
        return self.count(name)

    def part(self, name: str) -> Fields:
        """An object; an empty one where there is none."""
        body = self._found(name, "an object", _is_object)
        return Fields(body or {}, at=self._at, within=self._path(name), hide=self._hide)

    def parts(self, name: str) -> list[Fields]:
        """A list of objects; empty where there is none."""
        bodies = self._listed(name, "a list of objects", _is_object)
        path = self._path(name)
        return [
            Fields(body, at=self._at, within=f"{path}[{place}]", hide=self._hide)
            for place, body in enumerate(bodies)
        ]

    def _listed(self, name: str, wanted: str, fits: Callable[[object], TypeGuard[T]]) -> list[T]:
        values = self._found(name, wanted, _is_list) or []
        found = [value for value in values if fits(value)]
        if len(found) < len(values):
            raise self._wrong(name, values, wanted)
        return found

    def _found(self, name: str, wanted: str, fits: Callable[[object], TypeGuard[T]]) -> T | None:
        value = self.body.get(name)
        if value is None or fits(value):
            return value
        raise self._wrong(name, value, wanted)

    def _wrong(self, name: str, value: object, wanted: str) -> ReplyMalformed:
        seen = f"{self._path(name)} {_short(self._hide(json.dumps(value)))}"
        return malformed(self._at, seen=seen, wanted=f"{wanted} there")

    def _path(self, name: str) -> str:
        return f"{self._within}.{name}" if self._within else name


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _is_flag(value: object) -> TypeGuard[bool]:
    return isinstance(value, bool)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_count(value: object) -> TypeGuard[int]:
    # What no float can hold would fail wherever it is divided.
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _ABSURD


def _is_number(value: object) -> TypeGuard[float]:
    return math.isfinite(value) if isinstance(value, float) else _is_count(value)


def _is_label(value: object) -> TypeGuard[str | int]:
    return isinstance(value, str) or _is_count(value)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
