"""The strategy in the suite that hotswap ships for all load strategies."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hotswap_delta_pull import DeltaPullStrategy
from safetensors.torch import save_file

from hotswap.seams import LoadStrategy
from hotswap.stream import directory_of
from hotswap.testing import Publish, StrategyTests


def write(directory: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    save_file(dict(tensors), directory / "model.safetensors")
    return directory


class TestDeltaPullStrategy(StrategyTests):
    strategy_name = "delta-pull"

    @pytest.fixture
    def strategy(self, tmp_path: Path) -> LoadStrategy:
        root = tmp_path / "copies"
        root.mkdir()
        base = write(tmp_path / "base", {"w": torch.zeros(2)})
        return DeltaPullStrategy.from_options({"model": str(base), "local-root": (str(root),)})

    @pytest.fixture
    def publish(self, tmp_path: Path) -> Publish:
        numbers = itertools.count()

        def published(tensors: Mapping[str, torch.Tensor]) -> str:
            source = tmp_path / f"stream-{next(numbers)}"
            return str(write(directory_of(source, 1), tensors))

        return published
