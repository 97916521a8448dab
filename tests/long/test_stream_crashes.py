"""A pull is cut short at every call to the disk: killed, without power, with failing writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.stream.crash_setups import SCENARIOS
from tests.unit.stream.crashes import ERRORS, Scenario

pytestmark = pytest.mark.long

HALVED = ("spare_fold", "spare_folded", "spare_reseed", "back_in_place")
"""Of these every second call: what they do one after the other, others do alone."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_of_a_pull(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    scenario = Scenario(name, tmp_path)
    every = range(0, len(scenario.calls), 2 if name in HALVED else 1)
    points = scenario.kill(every)
    points += scenario.cut(every)
    for lucky in range(3):
        points += scenario.cut(every, lucky=lucky)
    for at in every:
        for code in ERRORS:
            for times in (1, math.inf):
                scenario.fail(at, code, times=times)
                points += 1
    record_property("points", points)
    # Over all ways to pull: well over 300 points.
    assert points == 9 * len(every) >= 9 * 12
