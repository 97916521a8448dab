"""The suite of engines passes the two engines of hotswap, and finds faults by their names."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.engine.model import fused_rules, padded_rows
from hotswap.seams import Engine
from hotswap.testing import (
    EngineFactory,
    EngineTests,
    LiveWeights,
    ModuleEngine,
    make_checkpoint,
    run_suite,
)
from hotswap.testing.tiny_modules import TinyModel, tiny_target
from hotswap.types import Scope
from hotswap.weights.target import WeightTarget
from tests.unit.testing import broken_floats, broken_generators, broken_module_engines
from tests.unit.testing.planted_engines import BROKEN
from tests.unit.testing.planting import explained

for module in (broken_floats, broken_generators, broken_module_engines):
    assert module.__all__ == []  # it has filled BROKEN


def views(target: WeightTarget) -> dict[str, torch.Tensor]:
    """Live memory by checkpoint names."""
    plan = target.plan(target.manifest(), Scope.FULL)
    return {name: slot.destination() for name, slot in plan.slots.items()}


def module_weights(engine: ModuleEngine) -> Mapping[str, torch.Tensor]:
    return views(engine.target)


def embedded_weights(engine: EmbeddedEngine) -> Mapping[str, torch.Tensor]:
    model = engine.model
    return views(
        WeightTarget(model, fused=fused_rules(model.config), padded_rows=padded_rows(model))
    )


def module_engine(kind: type[ModuleEngine] = ModuleEngine) -> EngineFactory:
    @asynccontextmanager
    async def run() -> AsyncIterator[Engine]:
        torch.manual_seed(0)
        yield kind(tiny_target(TinyModel(padding=3)))

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "a", arch="qwen3", tied=True)


def embedded_engine(model: Path, kind: type[EmbeddedEngine] = EmbeddedEngine) -> EngineFactory:
    return partial(kind.from_directory, model, device="cpu")


class TestModuleEngine(EngineTests):
    @pytest.fixture
    def engine(self) -> EngineFactory:
        return module_engine()

    @pytest.fixture
    def live(self) -> LiveWeights:
        return module_weights


class TestEmbeddedEngine(EngineTests):
    @pytest.fixture
    def engine(self, model: Path) -> EngineFactory:
        return embedded_engine(model)

    @pytest.fixture
    def live(self) -> LiveWeights:
        return embedded_weights


class Small(EngineTests):
    """One of the engines hangs, and half of the limit has to pass; the others take a second."""

    settle_s = 0.3
    limit_s = 10.0


class Patient(Small):
    limit_s = 60.0


def fixtures_of(what: str, model: Path) -> dict[str, Callable[[], object]]:
    kind = BROKEN[what].kind
    if issubclass(kind, EmbeddedEngine):
        return {"engine": lambda: embedded_engine(model, kind), "live": lambda: embedded_weights}
    return {"engine": lambda: module_engine(kind), "live": lambda: module_weights}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_engine_fails_the_test_that_names_its_fault(what: str, model: Path) -> None:
    planted = BROKEN[what]
    outcomes = run_suite(Small, fixtures_of(what, model), only=[planted.test])
    explained(outcomes[planted.test], planted.says)


@pytest.mark.long
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_engine_fails_no_other_test(what: str, model: Path) -> None:
    outcomes = run_suite(Patient, fixtures_of(what, model))
    failed = [name for name, error in outcomes.items() if error is not None]
    assert failed == [BROKEN[what].test]


def test_every_test_of_the_suite_has_a_broken_engine() -> None:
    assert {planted.test for planted in BROKEN.values()} == set(EngineTests.tests)
