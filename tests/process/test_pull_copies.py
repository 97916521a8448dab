"""A server whose pulls write into a second copy: what it serves is what was published."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotswap.sparse.cache import PATCHES
from tests.process.in_process import load, serving
from tests.process.stream_publisher import publisher
from tests.process.test_pull_log import Trainer, fresh, seen

pytestmark = pytest.mark.process


@pytest.mark.long
async def test_updates_stay_sparse_while_files_change_places(a: Path, tmp_path: Path) -> None:
    PATCHES.clear()
    source, local = tmp_path / "source", tmp_path / "local"
    async with (
        publisher(a, source, tmp_path / "expected") as trains,
        serving(load(a), model=str(a), local_checkpoint="two-copies") as server,
    ):
        trainer = Trainer(server.client, source, local)
        assert (await trainer.pull(0))["mode"] == "seed"
        await trainer.update(0)
        weights = sorted(local.glob("*.safetensors"))
        inodes = [[path.stat().st_ino for path in weights]]
        for version, encoding in enumerate(("xor", "gap"), start=1):
            expected = await fresh(await trains.publish(version, encoding))
            assert (await trainer.pull(version))["mode"] == "delta"
            inodes.append([path.stat().st_ino for path in weights])
            # The files are others: what was pulled is still known to be what changed.
            assert (await trainer.update(version))["mode"] == "sparse"
            assert await seen(server.client) == expected
        first, second, third = inodes
        assert set(first).isdisjoint(second)
        assert third == first
