"""pytest fixtures: a real server, and checkpoints that it serves.

Import them into a ``conftest.py``. Needs the extra ``hotswap[testing]``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess

__all__ = ["MakeCheckpoint", "StartServer", "hotswap_server", "tiny_checkpoint"]

StartServer: TypeAlias = Callable[..., ServerProcess]
"""Takes the arguments of ``ServerProcess`` and gives one that is up."""

MakeCheckpoint: TypeAlias = Callable[..., Path]
"""Takes the keyword arguments of ``make_checkpoint`` and gives the directory."""


@pytest.fixture
def hotswap_server() -> Iterator[StartServer]:
    """Start servers: ``hotswap_server(model, "--load-mode", "direct")``. They end with the test."""
    with ExitStack() as running:

        def start(model: str | Path, *arguments: str, **options: Any) -> ServerProcess:
            return running.enter_context(ServerProcess(model, *arguments, **options))

        yield start


@pytest.fixture
def tiny_checkpoint(tmp_path: Path) -> MakeCheckpoint:
    """Make checkpoints: ``tiny_checkpoint(arch="qwen3", seed=2)``."""
    numbers = itertools.count()

    def make(**options: Any) -> Path:
        return make_checkpoint(tmp_path / f"checkpoint-{next(numbers)}", **options)

    return make
