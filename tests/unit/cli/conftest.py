"""What commands find: a checkpoint, and an environment that says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotswap.testing import make_checkpoint


@pytest.fixture
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key and no server are named."""
    for name in ("HOTSWAP_API_KEY", "HOTSWAP_ADMIN_API_KEY", "HOTSWAP_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    make_checkpoint(directory)
    return directory
