"""A trainer that publishes, for all tests of publishers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.stream.trained import Trainer


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)
