"""A fixture that is wrong is told from a fault of the plug-in, in one sentence."""

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch

from hotswap.testing import (
    EngineTests,
    Hidden,
    ModuleEngine,
    PreReadTests,
    StrategyTests,
    WrongFixture,
    run_suite,
)
from hotswap.testing.suites import Suite
from tests.unit.testing.file_strategy import FileStrategy, publisher

Tensors = Mapping[str, torch.Tensor]


class Floats(StrategyTests):
    dtypes = (torch.float32, torch.bfloat16, torch.int64)


def no_bfloat16(tensors: Tensors) -> str:
    for tensor in tensors.values():
        tensor.numpy()
    return "somewhere"


def no_scalars(tensors: Tensors) -> str:
    if any(not tensor.shape for tensor in tensors.values()):
        raise ValueError("a row or more")
    return "somewhere"


def broken(tensors: Tensors) -> str:
    raise OSError("no space left")


def given(value: object) -> object:
    return value


def wrong_fixture(suite: type[Suite], test: str, **fixtures: object) -> str:
    """What the one test says about the fixtures."""
    made = {name: partial(given, value) for name, value in fixtures.items()}
    error = run_suite(suite, made, only=[test])[test]
    assert isinstance(error, WrongFixture), repr(error)
    return str(error)


@pytest.mark.parametrize(
    ("publish", "says"),
    [
        (no_bfloat16, "does so for every tensor of torch.bfloat16; if the source cannot hold"),
        (no_bfloat16, "say in the class which dtypes it can hold: dtypes = (torch.float32, torch."),
        (broken, "the fixture publish raised OSError: no space left; put it right: one that gives"),
        (None, "the fixture publish gave None, wanted one that gives a function that takes"),
        (lambda tensors: None, "returned None, wanted the source as a text"),
        (lambda tensors: Path("x"), "returned PosixPath('x'), wanted the source as a text"),
    ],
)
def test_a_publish_that_cannot_work_says_why(publish: object, says: str) -> None:
    test = "test_no_tensor_is_missing"
    assert says in wrong_fixture(Floats, test, strategy=FileStrategy(), publish=publish)


def test_a_publish_that_cannot_hold_a_shape_says_which() -> None:
    told = wrong_fixture(
        Floats,
        "test_empty_and_scalar_tensors_are_delivered",
        strategy=FileStrategy(),
        publish=no_scalars,
    )
    assert "it does so for scalar [] float32; if the source cannot hold these, leave" in told


def test_a_publish_that_writes_over_its_last_source_is_found(tmp_path: Path) -> None:
    write = publisher(tmp_path)
    first: list[str] = []

    def publish(tensors: Tensors) -> str:
        first.append(write(tensors))
        return first[0]

    told = wrong_fixture(
        Floats,
        "test_another_source_is_another_checkpoint",
        strategy=FileStrategy(),
        publish=publish,
    )
    assert "source-0' for the second time, wanted another place for each call" in told


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (FileStrategy, "the fixture strategy gave the class FileStrategy, wanted an object of it"),
        (None, "the fixture strategy gave None, which has no open; write one that gives a new"),
    ],
)
def test_a_strategy_that_is_none_is_found(strategy: object, says: str, tmp_path: Path) -> None:
    test = "test_no_tensor_is_missing"
    assert says in wrong_fixture(Floats, test, strategy=strategy, publish=publisher(tmp_path))


@pytest.mark.parametrize("dtypes", [(), torch.float32, ("float32",)])
def test_dtypes_are_dtypes(dtypes: object, tmp_path: Path) -> None:
    suite = type("Odd", (StrategyTests,), {"dtypes": dtypes})
    told = wrong_fixture(
        suite,
        "test_no_tensor_is_missing",
        strategy=FileStrategy(),
        publish=publisher(tmp_path),
    )
    assert "dtypes of Odd is" in told
    assert "wanted one dtype or more" in told


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (None, "it gave None, wanted one that gives a function that makes an engine"),
        (lambda: 3, "engine() made 3, wanted one that gives"),
    ],
)
def test_an_engine_fixture_that_makes_none_is_found(engine: object, says: str) -> None:
    test = "test_the_manifest_names_every_live_weight"
    assert says in wrong_fixture(EngineTests, test, engine=engine, live=dict)


def test_live_weights_are_tensors_by_name() -> None:
    class Running:
        manifest = staticmethod(ModuleEngine.manifest)

    told = wrong_fixture(
        EngineTests,
        "test_weights_are_written_in_place",
        engine=lambda: nullcontext(Running()),
        live=lambda engine: [torch.ones(1)],
    )
    assert "the fixture live shows a list, wanted one that gives a function that takes" in told


async def hook(source: str) -> None:
    return


@pytest.mark.parametrize(
    ("hide", "says"),
    [
        (None, "the fixture hide gave None, which has no __call__; write one that gives"),
        (lambda: "x", "hide() returned 'x', wanted a hotswap.testing.Hidden"),
        (
            lambda: Hidden(source="x", is_readable=lambda: True),
            "hide() made 'x', which is readable already",
        ),
    ],
)
def test_a_hide_that_hides_nothing_is_found(hide: object, says: str) -> None:
    test = "test_the_source_is_readable_afterwards"
    told = wrong_fixture(PreReadTests, test, pre_read=hook, hide=hide)
    assert says in told
