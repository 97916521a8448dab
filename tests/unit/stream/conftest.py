"""A trainer that publishes, and a stream in a store, for all tests of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.stream.stored_stream import Stored
from tests.unit.stream.trained import Trainer


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path, "xor", "gap", "overwrite", "full", "gap")
