"""What the conformance suites share: tests that nobody overrides in silence.

Rules:

* A test is a plain method named ``test_*`` that takes fixtures by their names. It runs an
  event loop of its own, so that it needs no setting and no plug-in of pytest.
* One fault, one test: a test looks for what it is named after and for nothing else.
* A test that fails says what was found, in what, and what to do: see ``findings``.
* Whoever overrides a test says why: ``@override("...")``, or
  ``test_x = leave_out("...")``. A class that does not is never made.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import unittest
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

import anyio

from hotswap.testing.cancelling import place_of
from hotswap.testing.given import WrongFixture, wanted_fixture
from hotswap.testing.overriding import check_overrides

__all__ = ["NeverEnded", "Suite", "fixtures_of"]

_PREFIX = "test_"
T = TypeVar("T")


class NeverEnded(TimeoutError):
    """A call of the plug-in did not end within ``limit_s``."""


class Suite:
    """Base of the suites. ``limit_s`` bounds each test, ``settle_s`` how long threads that
    a cancelled call has left behind may take to let go of what they hold."""

    limit_s: ClassVar[float] = 120.0
    settle_s: ClassVar[float] = 10.0
    tests: ClassVar[tuple[str, ...]] = ()
    is_suite: ClassVar[bool] = True

    def __init_subclass__(cls, *, suite: bool = False, **others: Any) -> None:
        """``suite`` is true for the suites themselves.

        Raises: TypeError for a subclass that overrides a test without a reason, gives one for
        what is no test of its suite, or misspells a setting.
        """
        super().__init_subclass__(**others)
        cls.is_suite = False
        check_overrides(cls, cls.tests)
        cls.is_suite = suite
        if suite:
            cls.tests = tuple(name for name in dir(cls) if name.startswith(_PREFIX))
            _complete(cls)

    def run(self, test: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Run ``test`` in an event loop of its own. Raises: NeverEnded after ``limit_s``."""

        async def bounded() -> T:
            work = test(*arguments)
            places: list[str] = []

            def stop() -> None:
                places.append(place_of(work))
                scope.cancel()

            with anyio.CancelScope() as scope:
                alarm = asyncio.get_running_loop().call_later(self.limit_s, stop)
                try:
                    return await work
                finally:
                    alarm.cancel()
            raise NeverEnded(
                f"waited for longer than limit_s = {self.limit_s:g} s, in {places[0]}; let that "
                "wait end, or set limit_s in the class if the plug-in is that slow"
            )

        return anyio.run(bounded)


def fixtures_of(cls: type[Suite], tests: tuple[str, ...] | list[str]) -> list[str]:
    """The fixtures that ``tests`` of ``cls`` take."""
    taken = [inspect.signature(getattr(cls, test)).parameters for test in tests]
    return sorted({name for names in taken for name in names} - {"self"})


def _complete(cls: type[Suite]) -> None:
    """Have a suite's own tests explain what plug-ins raise, and its fixtures be asked for."""
    for name in cls.tests:
        if name in vars(cls):
            setattr(cls, name, _explained(name, vars(cls)[name]))
    for name in fixtures_of(cls, cls.tests):
        fixture = wanted_fixture(name, suite=cls.__name__)
        if fixture is not None:
            setattr(cls, name, fixture)


def _explained(name: str, test: Callable[..., T]) -> Callable[..., T]:
    purpose = " ".join((inspect.getdoc(test) or "").split())

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> T:
        __tracebackhide__ = True
        try:
            return test(*arguments, **fixtures)
        except (AssertionError, WrongFixture, unittest.SkipTest):
            raise
        except Exception as error:
            error.add_note(
                f"The plug-in raised this in {name} ({purpose}); put right what raises it."
            )
            raise

    return run
