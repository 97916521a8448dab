"""A publisher is killed: what readers can see is whole, and the next one goes on.

``tests/long/test_publisher_kills.py`` does it a hundred times.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.stream.killed import kill_publishers

pytestmark = pytest.mark.process


def test_readers_are_never_wrong(tmp_path: Path) -> None:
    seen = kill_publishers(tmp_path, kills=6, seed=7)
    assert seen["killed"] >= 4
    assert seen["newest"] >= 4
