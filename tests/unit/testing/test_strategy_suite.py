"""The suite of load strategies passes a correct one, and finds each fault by its name."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hotswap.seams import LoadStrategy
from hotswap.testing import Publish, StrategyTests, run_suite
from tests.unit.testing import (
    broken_bystanders,
    broken_deliveries,
    broken_holdings,
    broken_tasks,
)
from tests.unit.testing.file_strategy import FileStrategy, publisher
from tests.unit.testing.planted_strategies import BROKEN, LEFT_BEHIND
from tests.unit.testing.planting import explained

for module in (broken_bystanders, broken_deliveries, broken_holdings, broken_tasks):
    assert module.__all__ == []  # it has filled BROKEN


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    while LEFT_BEHIND:
        LEFT_BEHIND.pop()()


class TestFileStrategy(StrategyTests):
    @pytest.fixture
    def strategy(self) -> LoadStrategy:
        return FileStrategy()

    @pytest.fixture
    def publish(self, tmp_path: Path) -> Publish:
        return publisher(tmp_path)


class Small(StrategyTests):
    """Leaks are seen at once. Below 32 MiB malloc would keep what is let go of."""

    huge_bytes = 40 * 2**20
    settle_s = 0.3
    dtypes = (torch.float32, torch.int64)


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_strategy_fails_the_test_that_names_its_fault(what: str, tmp_path: Path) -> None:
    planted = BROKEN[what]
    fixtures = {"strategy": planted.make, "publish": lambda: publisher(tmp_path)}
    explained(run_suite(Small, fixtures, only=[planted.test])[planted.test], planted.says)


@pytest.mark.long
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_strategy_fails_no_other_test(what: str, tmp_path: Path) -> None:
    planted = BROKEN[what]
    folders = (tmp_path / str(number) for number in itertools.count())
    fixtures = {"strategy": planted.make, "publish": lambda: publisher(next(folders))}
    outcomes = run_suite(Small, fixtures)
    assert outcomes.keys() == set(StrategyTests.tests)
    assert [name for name, error in outcomes.items() if error is not None] == [planted.test]


def test_every_test_of_the_suite_has_a_broken_strategy() -> None:
    assert {planted.test for planted in BROKEN.values()} == set(StrategyTests.tests)
