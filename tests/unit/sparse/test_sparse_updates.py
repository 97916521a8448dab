"""The update after a pull writes what has changed, and the weights are those of a fresh server."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotswap.sparse.cache import PATCHES
from hotswap.types import LoadMode
from tests.unit.sparse.rig import Served, Trainer, state_of

both_modes = pytest.mark.parametrize("mode", LoadMode)


@both_modes
@pytest.mark.parametrize("encoding", ["xor", "overwrite", "gap"])
async def test_each_version_after_the_first_is_sparse(
    tmp_path: Path, encoding: str, mode: LoadMode
) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        first = await served.load(mode=mode)
        every = sum(tensor.numel() for tensor in trainer.states[0].values())
        assert (first.commit_mode, first.elements_moved) == ("full", every)
        for _ in range(3):
            version = trainer.publish(encoding=encoding)
            before, after = trainer.states[-2:]
            await served.pull(version)
            report = await served.load(version=version, mode=mode)
            served.assert_serves(after)
            moved = sum(int((before[name] != after[name]).sum()) for name in after)
            assert (report.commit_mode, report.elements_moved) == ("sparse", moved)
            assert report.stamp.version == str(version)
        assert len(PATCHES) == 0
