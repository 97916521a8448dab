"""What the conformance suites share: tests that nobody overrides in silence.

Rules:

* A test is a plain method named ``test_*`` that takes fixtures by their names. It runs an
  event loop of its own, so that it needs no setting and no plug-in of pytest.
* One fault, one test: a test looks for what it is named after and for nothing else.
* Whoever overrides a test says why: ``@override("...")``, or
  ``test_x = leave_out("...")``. A class that does not is never made.
"""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, ClassVar, TypeVar

import anyio

__all__ = ["Suite", "leave_out", "override", "run_suite"]

_PREFIX = "test_"
_REASON = "hotswap_override_reason"
_Test = TypeVar("_Test", bound=Callable[..., object])
T = TypeVar("T")


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


class Suite:
    """Base of the suites. ``limit_s`` bounds each test, ``settle_s`` how long threads that
    a cancelled call has left behind may take to let go of what they hold."""

    limit_s: ClassVar[float] = 120.0
    settle_s: ClassVar[float] = 10.0
    tests: ClassVar[tuple[str, ...]] = ()
    is_suite: ClassVar[bool] = True

    def __init_subclass__(cls, *, suite: bool = False, **others: Any) -> None:
        """``suite`` is true for the suites themselves.

        Raises: TypeError for a subclass that overrides a test without a reason.
        """
        super().__init_subclass__(**others)
        cls.is_suite = suite
        if suite:
            cls.tests = tuple(name for name in dir(cls) if name.startswith(_PREFIX))
            return
        unexplained = [name for name in cls.tests if not _is_explained(cls, name)]
        if unexplained:
            raise TypeError(
                f"{cls.__name__} overrides {', '.join(unexplained)} of its suite and says no "
                'reason; write @hotswap.testing.override("why") above it, or '
                f'{unexplained[0]} = hotswap.testing.leave_out("why")'
            )

    def run(self, test: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Run ``test`` in an event loop of its own. Raises: TimeoutError after ``limit_s``."""

        async def bounded() -> T:
            with anyio.fail_after(self.limit_s):
                return await test(*arguments)

        return anyio.run(bounded)


def _is_explained(cls: type[Suite], name: str) -> bool:
    owner = next(parent for parent in cls.__mro__ if name in vars(parent))
    return bool(vars(owner).get("is_suite", False)) or hasattr(vars(owner)[name], _REASON)


def run_suite(
    suite: type[Suite],
    fixtures: Mapping[str, Callable[[], object]],
    *,
    only: Collection[str] | None = None,
) -> dict[str, BaseException | None]:
    """Run the tests of ``suite`` without pytest: what each has raised, None when it passed.

    ``fixtures`` make the fixtures by their names, anew for each test; ``only`` are the
    names of the tests to run, None for all. A test that is skipped has not failed.
    """
    wanted = [name for name in suite.tests if only is None or name in only]
    return {name: _outcome(getattr(suite(), name), fixtures) for name in wanted}


def _outcome(
    test: Callable[..., object], fixtures: Mapping[str, Callable[[], object]]
) -> BaseException | None:
    wanted = inspect.signature(test).parameters
    try:
        test(**{name: fixtures[name]() for name in wanted})
    except unittest.SkipTest:
        return None
    except Exception as error:
        return error
    return None
