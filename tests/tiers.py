"""Which cases of a test run every time, and which in ``make test-long`` alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

__all__ = ["mostly_long"]


def mostly_long(cases: Iterable[object], *, but: Collection[object]) -> list[object]:
    """``cases`` as parameters: those of ``but`` run every time, the rest in the long tier.

    Raises: ValueError for one of ``but`` that is no case, which would then run nowhere.
    """
    cases = list(cases)
    strange = [case for case in but if case not in cases]
    if strange:
        raise ValueError(f"{strange} are no cases; wanted some of {cases}")
    return [case if case in but else pytest.param(case, marks=pytest.mark.long) for case in cases]
