from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.testing.checkpoints import make_checkpoint, make_labelled_checkpoint

Make = Callable[..., Path]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    # Matrices this small only lose by being shared out, and the machine has other work.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Make a checkpoint, or give the one that was made with the same arguments."""
    made: dict[str, Path] = {}

    def make(**options: Any) -> Path:
        key = repr(sorted(options.items(), key=str))
        if key not in made:
            directory = tmp_path_factory.mktemp("checkpoint")
            maker = make_labelled_checkpoint if "label" in options else make_checkpoint
            made[key] = maker(directory, **options)
        return made[key]

    return make


@pytest.fixture
async def engine(checkpoint: Make) -> AsyncIterator[EmbeddedEngine]:
    """A tiny Qwen3 on the CPU, running."""
    async with EmbeddedEngine.from_directory(checkpoint(arch="qwen3"), device="cpu") as running:
        yield running
