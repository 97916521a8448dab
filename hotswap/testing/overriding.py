"""How a subclass of a suite replaces or leaves out one of its tests: with a reason."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Collection
from difflib import get_close_matches
from typing import TypeVar

__all__ = ["check_overrides", "leave_out", "meant", "override"]

_REASON = "hotswap_override_reason"
_SIMILAR = 0.8
_Test = TypeVar("_Test", bound=Callable[..., object])


def override(reason: str) -> Callable[[_Test], _Test]:
    """Mark a test that replaces one of a suite. Raises: TypeError for a reason that is none."""
    if not isinstance(reason, str) or not reason.strip():
        raise TypeError(f"the reason for an override is {reason!r}, wanted a sentence")

    def mark(test: _Test) -> _Test:
        setattr(test, _REASON, reason)
        return test

    return mark


def leave_out(reason: str) -> Callable[..., None]:
    """A test that is skipped and says why; assign it to the name of the suite's test."""

    @override(reason)
    def test(self: object) -> None:
        raise unittest.SkipTest(reason)

    return test


def check_overrides(cls: type, tests: Collection[str]) -> None:
    """Look at what ``cls`` changes of the suite whose ``tests`` it inherits.

    Raises: TypeError for an override without a reason, a reason for what is no test of the
    suite, and an attribute that misspells a setting.
    """
    unexplained = [name for name in tests if not _is_explained(cls, name)]
    if unexplained:
        raise TypeError(
            f"{cls.__name__} overrides {', '.join(unexplained)} of its suite and says no "
            'reason; write @hotswap.testing.override("why") above it, or '
            f'{unexplained[0]} = hotswap.testing.leave_out("why")'
        )
    for name, value in vars(cls).items():
        if hasattr(value, _REASON) and name not in tests:
            raise TypeError(
                f"{cls.__name__} says why it overrides {name}, and its suite has no such test; "
                f"{meant(name, tests)}"
            )
        if not name.startswith("_") and not callable(value):
            _check_setting(cls, name)


def meant(name: str, names: Collection[str]) -> str:
    """What to do about ``name``, which is none of ``names``."""
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"wanted one of {', '.join(sorted(names))}"


def _is_explained(cls: type, name: str) -> bool:
    owner = next(parent for parent in cls.__mro__ if name in vars(parent))
    return bool(vars(owner).get("is_suite", False)) or hasattr(vars(owner)[name], _REASON)


def _check_setting(cls: type, name: str) -> None:
    suites = [parent for parent in cls.__mro__ if vars(parent).get("is_suite", False)]
    settings = {setting for suite in suites for setting in vars(suite).get("__annotations__", {})}
    close = get_close_matches(name, settings - {name}, n=1, cutoff=_SIMILAR)
    if name not in settings and close:
        raise TypeError(
            f"{cls.__name__} sets {name}, which its suite does not have; did you mean "
            f"{close[0]}? Give it another name if it is something of your own"
        )
