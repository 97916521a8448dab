"""The processes that the generation benchmarks drive, each with a model that takes no time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from contrib.bench.generation_http import steps
from contrib.bench.generation_side import SideProcess, prompts
from contrib.bench.process import thread_cpu_s
from contrib.bench.streams import Streams
from hotswap.testing.checkpoints import make_checkpoint
from tests.untraced import UNTRACED

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in UNTRACED.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    # The prompts' tokens are below 2048.
    return make_checkpoint(tmp_path, dtype=torch.bfloat16, vocab_size=2048)


def _counts(arrivals: Sequence[Sequence[float]]) -> list[int]:
    return [len(one) for one in arrivals]


def test_one_engine_is_driven_from_python_and_over_http(model: Path) -> None:
    with SideProcess("contrib.bench.generation_served", str(model), "1") as side:
        direct = side.arrivals(batch=3, tokens=5)
        http = Streams(side.configuration["port"], prompts(3), tokens=5).end()
        emptied = side.arrivals(batch=0, tokens=0)
        cpu = thread_cpu_s(side.pid)

    assert _counts(direct) == _counts(http) == [5, 5, 5]
    assert len(steps(direct)) == len(steps(http)) == 6
    assert emptied == []
    # The event loop's thread is the first, and the engine has one too.
    assert len(cpu) >= 2
    assert cpu[side.pid] > 0


def test_the_engine_alone_decodes_for_every_command(model: Path) -> None:
    with SideProcess("contrib.bench.generation_side", "hotswap", str(model)) as side:
        runs = [side.arrivals(threads=1, batch=batch, tokens=6) for batch in (2, 3)]

    assert [_counts(run) for run in runs] == [[6, 6], [6, 6, 6]]
    assert side.configuration["dtype"] == "torch.bfloat16"


def test_a_side_that_dies_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the process ended with 1"):
        SideProcess("contrib.bench.generation_side", "hotswap", str(tmp_path / "absent"))
