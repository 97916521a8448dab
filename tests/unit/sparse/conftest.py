"""No test finds what another one has pulled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hotswap.sparse.cache import PATCHES


@pytest.fixture(autouse=True)
def patches() -> Iterator[None]:
    """The cache of the process, put back to what it was."""
    limit_bytes = PATCHES.limit_bytes
    PATCHES.clear()
    yield
    PATCHES.clear()
    PATCHES.limit_bytes = limit_bytes
