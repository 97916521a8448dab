"""Sharing by name, as between processes that have nothing to do with each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.wire.senders import sharing


@pytest.fixture
def by_name() -> Iterator[None]:
    with sharing("file_system"):
        yield


def own_segments() -> set[str]:
    """Names of the segments that this process has made and not removed."""
    return {path.name for path in Path("/dev/shm").glob(f"torch_{os.getpid()}_*")}


@pytest.fixture
def no_segment_left() -> Iterator[None]:
    before = own_segments()
    yield
    assert own_segments() <= before
