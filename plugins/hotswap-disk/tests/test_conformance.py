"""The disk strategy in the suite that hotswap ships for all load strategies."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hotswap_disk import DiskStrategy
from safetensors.torch import save_file

from hotswap.seams import LoadStrategy
from hotswap.testing import Publish, StrategyTests


class TestDiskStrategy(StrategyTests):
    @pytest.fixture
    def strategy(self) -> LoadStrategy:
        return DiskStrategy()

    @pytest.fixture
    def publish(self, tmp_path: Path) -> Publish:
        numbers = itertools.count()

        def write(tensors: Mapping[str, torch.Tensor]) -> str:
            directory = tmp_path / f"checkpoint-{next(numbers)}"
            directory.mkdir()
            (directory / "config.json").write_text("{}")
            save_file(dict(tensors), directory / "model.safetensors")
            return str(directory)

        return write


class TestDiskStrategyOnTorchFiles(TestDiskStrategy):
    @pytest.fixture
    def publish(self, tmp_path: Path) -> Publish:
        numbers = itertools.count()

        def write(tensors: Mapping[str, torch.Tensor]) -> str:
            directory = tmp_path / f"checkpoint-{next(numbers)}"
            directory.mkdir()
            (directory / "config.json").write_text("{}")
            torch.save(dict(tensors), directory / "pytorch_model.bin")
            return str(directory)

        return write
