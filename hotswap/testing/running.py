"""A suite without pytest: its tests, one after the other, and what each has raised."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable, Collection, Mapping

from hotswap.testing.given import WrongFixture, missing_fixture
from hotswap.testing.overriding import meant
from hotswap.testing.suites import Suite, fixtures_of

__all__ = ["run_suite"]


def run_suite(
    suite: type[Suite],
    fixtures: Mapping[str, Callable[[], object]],
    *,
    only: Collection[str] | None = None,
) -> dict[str, BaseException | None]:
    """Run the tests of ``suite`` without pytest: what each has raised, None when it passed.

    ``fixtures`` make the fixtures by their names, anew for each test; ``only`` are the
    names of the tests to run, None for all. A test that is skipped has not failed.

    Raises: ValueError for a name in ``only`` that is no test of the suite; WrongFixture for a
    fixture that is missing, or that no test takes.
    """
    for name in only or ():
        if name not in suite.tests:
            raise ValueError(
                f"only={name!r} is no test of {suite.__name__}; {meant(name, suite.tests)}"
            )
    wanted = [name for name in suite.tests if only is None or name in only]
    _check_fixtures(suite, fixtures, wanted)
    return {name: _outcome(getattr(suite(), name), fixtures) for name in wanted}


def _check_fixtures(
    suite: type[Suite], fixtures: Mapping[str, Callable[[], object]], wanted: list[str]
) -> None:
    known = fixtures_of(suite, suite.tests)
    for name in fixtures:
        if known and name not in known:
            raise WrongFixture(
                f"no test of {suite.__name__} takes the fixture {name}; {meant(name, known)}"
            )
    for name in fixtures_of(suite, wanted):
        if name not in fixtures:
            raise missing_fixture(name, suite=suite.__name__)


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
