"""What a server does last before it serves."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hotswap_disk import DiskStrategy

from hotswap.engine import EmbeddedEngine
from hotswap.rehearsal import keep_out_of_collections, rehearse
from hotswap.testing.checkpoints import make_checkpoint
from hotswap.weights.roots import Roots


@pytest.fixture
def engine(tmp_path: Path) -> EmbeddedEngine:
    return EmbeddedEngine.from_directory(make_checkpoint(tmp_path / "a", seed=1), device="cpu")


async def test_a_rehearsed_update_touches_nothing(engine: EmbeddedEngine, tmp_path: Path) -> None:
    b = make_checkpoint(tmp_path / "b", seed=2)
    async with engine:
        before = await engine.checksums()
        assert await rehearse(engine, {"disk": DiskStrategy()}, b)
        assert await engine.checksums() == before


async def test_nothing_is_rehearsed_without_the_strategy(
    engine: EmbeddedEngine, tmp_path: Path
) -> None:
    assert not await rehearse(engine, {}, tmp_path / "a")


async def test_a_checkpoint_of_torch_is_not_read_twice(
    engine: EmbeddedEngine, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pytorch_model.bin").write_bytes(b"read me not")
    assert not await rehearse(engine, {"disk": DiskStrategy()}, tmp_path / "bin")


async def test_a_model_outside_the_roots_is_said_and_served(
    engine: EmbeddedEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "root").mkdir()
    strategy = DiskStrategy(allowed=Roots.of([str(tmp_path / "root")]))
    with caplog.at_level("INFO", "hotswap.serve"):
        assert not await rehearse(engine, {"disk": strategy}, tmp_path / "a")
    assert "no update was rehearsed" in caplog.text


def test_what_lives_at_the_start_is_collected_no_more() -> None:
    before = gc.get_freeze_count()
    try:
        keep_out_of_collections()
        assert gc.get_freeze_count() > before
        assert len(gc.get_objects()) < gc.get_freeze_count()
    finally:
        gc.unfreeze()
        if before:
            gc.freeze()
