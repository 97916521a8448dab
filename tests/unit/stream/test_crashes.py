"""A pull may be cut short at any call to the disk; here at a sample of them.

``tests/long/test_stream_crashes.py`` takes every call.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.unit.stream.crash_setups import SCENARIOS
from tests.unit.stream.crashes import ERRORS, Scenario


def spread(count: int, among: int) -> list[int]:
    """``count`` of the numbers below ``among``, evenly, the last one included."""
    return sorted({math.ceil((number + 1) * among / count) - 1 for number in range(count)})


LONG = ("spare_folded", "spare_reseed", "back_in_place")
QUICK = [name for name in SCENARIOS if name not in LONG]


@pytest.mark.parametrize("name", QUICK)
def test_cut_short_anywhere_the_next_pull_gives_the_target(name: str, tmp_path: Path) -> None:
    scenario = Scenario(name, tmp_path)
    assert len(scenario.calls) >= 12
    assert {"open", "write", "sync", "rename", "unlink"} <= set(scenario.calls)
    scenario.check_bytes(scenario.target)
    assert scenario.cut(spread(5, len(scenario.calls))) == 5
    for number, at in enumerate(spread(5, len(scenario.calls))):
        scenario.fail(at, ERRORS[number % 2], times=math.inf if number % 3 else 1)


@pytest.mark.parametrize("name", ["fold", "reseed", "log", "spare"])
def test_killed_anywhere_the_next_pull_gives_the_target(name: str, tmp_path: Path) -> None:
    scenario = Scenario(name, tmp_path)
    assert scenario.kill(spread(8, len(scenario.calls))) == 8
