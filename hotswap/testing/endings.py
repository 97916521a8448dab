"""The ways in which code can end that are no ``Exception``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

__all__ = ["ENDINGS", "StopEverything"]


class StopEverything(BaseException):
    """One of a plug-in's own."""


ENDINGS: Mapping[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("stop"),
    "GeneratorExit": lambda: GeneratorExit("closed"),
    "CancelledError": lambda: asyncio.CancelledError("nobody sent it"),
    "StopEverything": lambda: StopEverything("enough"),
}
"""Makes one of each, by the name of its class."""
