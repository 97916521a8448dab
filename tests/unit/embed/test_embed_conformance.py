"""The engine around an embedder's module passes the suite of engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import torch

from hotswap.embed import ForwardGate, GatedEngine
from hotswap.seams import Engine
from hotswap.testing import EngineFactory, EngineTests, LiveWeights
from hotswap.testing.tiny_modules import TinyModel, tiny_target
from hotswap.types import Scope


def live_weights(engine: GatedEngine) -> Mapping[str, torch.Tensor]:
    """Views of the live memory, by checkpoint names."""
    plan = engine.target.plan(engine.target.manifest(), Scope.FULL)
    return {name: slot.destination() for name, slot in plan.slots.items()}


@asynccontextmanager
async def gated_engine() -> AsyncIterator[Engine]:
    torch.manual_seed(0)
    yield GatedEngine(tiny_target(TinyModel(padding=3)), gate=ForwardGate())


class TestGatedEngine(EngineTests):
    @pytest.fixture
    def engine(self) -> EngineFactory:
        return gated_engine

    @pytest.fixture
    def live(self) -> LiveWeights:
        return live_weights
