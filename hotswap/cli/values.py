"""The values that flags take: what is none is refused before anything is done."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from dataclasses import dataclass
from difflib import get_close_matches

__all__ = ["OneOf", "Seconds", "Whole", "not_empty", "on_this_machine"]

_MOST = 2**63 - 1
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def not_empty(text: str) -> str:
    """``text``, of more than blanks: the empty directory would be the current one.

    Raises: ArgumentTypeError.
    """
    if not text.strip():
        raise ArgumentTypeError(f"it is {text!r}, wanted a text that is not empty")
    return text


def on_this_machine(text: str) -> str:
    """A directory, and no URL: that would be one whose name begins with ``s3:``.

    Raises: ArgumentTypeError.
    """
    if _URL.match(not_empty(text)):
        raise ArgumentTypeError("it is a URL, wanted a directory on this machine")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """One of ``choices``."""

    choices: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """Raises: ArgumentTypeError."""
        if not_empty(text) in self.choices:
            return text
        close = get_close_matches(text[:40], self.choices, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ArgumentTypeError(f"{_shown(text)}, wanted one of {', '.join(self.choices)}{meant}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A whole number from ``least`` to ``most``."""

    least: int
    most: int = _MOST

    def __call__(self, text: str) -> int:
        """Raises: ArgumentTypeError."""
        try:
            number = int(text)
        except ValueError:
            number = self.least - 1
        if self.least <= number <= self.most:
            return number
        end = "" if self.most == _MOST and number < self.least else f" to {self.most}"
        raise ArgumentTypeError(f"{_shown(text)}, wanted a whole number from {self.least}{end}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds, more than 0; ``zero`` allows it, and ``endless`` allows ``inf``, for ever."""

    zero: bool = False
    endless: bool = True

    def __call__(self, text: str) -> float:
        """Raises: ArgumentTypeError."""
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if (seconds > 0 or (self.zero and seconds == 0)) and (self.endless or seconds < math.inf):
            return seconds
        least = "0 or more" if self.zero else "more than 0"
        most = "; inf is for ever" if self.endless else ", and not for ever"
        raise ArgumentTypeError(f"{_shown(text)}, wanted seconds, {least}{most}")


def _shown(text: str) -> str:
    return f"it is {text[:40]!r}" if len(text) <= 40 else f"it begins with {text[:40]!r}"
