"""The engine with a thread of its own that the how-to shows: it passes the suite for engines."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from hotswap.testing import EngineTests
from hotswap.types import PauseMode, Scope, WeightStamp
from tests.markdown_blocks import ROOT, blocks_of

PAGE = ROOT / "docs" / "how-to" / "write-an-engine.md"
MINE = str(Path(__file__).relative_to(ROOT))


def shown() -> dict[str, Any]:
    """What the page's code defines."""
    (block,) = [block for block in blocks_of(PAGE) if block.expected == MINE]
    names: dict[str, Any] = {"__name__": "hotswap_looped"}
    exec(compile(block.code, block.place, "exec"), names)  # noqa: S102
    return names


class TestLooped(EngineTests):
    @pytest.fixture
    def engine(self) -> Any:
        run = shown()["run"]
        return lambda: run({})

    @pytest.fixture
    def live(self) -> Any:
        return lambda engine: dict(engine._steps.target.module.named_parameters())


async def test_writes_run_on_its_thread_and_only_while_it_is_paused() -> None:
    async with shown()["run"]({}) as engine:
        target, threads = engine._steps.target, []
        target.after_load(lambda: threads.append(threading.current_thread()))
        plan = engine.plan(engine.manifest(), Scope.FULL)
        bucket = [(spec.name, torch.ones(spec.shape)) for spec in engine.manifest().tensors]
        with pytest.raises(RuntimeError, match="write while the gate is open; pause"):
            await engine.write(plan, bucket)
        await engine.pause(PauseMode.IN_PLACE)
        await engine.write(plan, bucket)
        await engine.commit(WeightStamp(epoch=1))
        assert engine.stamp.epoch == 1
        assert threads != [threading.main_thread()]
        assert torch.equal(await engine.read_weight("bias", 2), torch.ones(2))
        assert repr(engine) == "<LoopedEngine <EngineLoop alive>>"
    assert not engine.alive
    with pytest.raises(RuntimeError, match="thread has ended"), anyio.fail_after(60):
        await engine.flush()
