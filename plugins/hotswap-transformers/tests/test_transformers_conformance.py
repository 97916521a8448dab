"""The engine passes the suite of engines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from hotswap_transformers import TransformersEngine

from hotswap.testing import EngineFactory, EngineTests, LiveWeights
from hotswap.types import Scope
from hotswap.weights.target import WeightTarget


def live_weights(engine: TransformersEngine) -> Mapping[str, torch.Tensor]:
    """Views of the live memory, by checkpoint names."""
    target = WeightTarget(engine.model)
    plan = target.plan(target.manifest(), Scope.FULL)
    return {name: slot.destination() for name, slot in plan.slots.items()}


class TestTransformersEngine(EngineTests):
    few: ClassVar[int] = 6
    many: ClassVar[int] = 80

    @pytest.fixture
    def engine(self, drive: Any) -> EngineFactory:
        directory = drive.checkpoint(1, num_layers=1)
        return partial(
            TransformersEngine.from_directory, directory, device="cpu", max_total_tokens=1024
        )

    @pytest.fixture
    def live(self) -> LiveWeights:
        return live_weights
