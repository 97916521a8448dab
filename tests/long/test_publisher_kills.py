"""A publisher is killed a hundred times at random, and no reader is ever wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.stream.killed import kill_publishers

pytestmark = pytest.mark.long


def test_a_hundred_kills(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    killed = newest = 0
    for seed in range(5):
        seen = kill_publishers(tmp_path / str(seed), kills=40, seed=seed)
        killed, newest = killed + seen["killed"], newest + seen["newest"]
    record_property("kills", killed)
    record_property("versions", newest)
    assert killed >= 100
    assert newest >= 100
