"""An update by ``delta-pull`` that fails: what is said, and that what was served still is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hotswap.sparse.cache import PATCHES
from hotswap.stream import BaseChanged, Keep, StreamError, directory_of
from tests.tiers import mostly_long
from tests.unit.sparse.rig import Served, Trainer, changed, state_of
from tests.unit.stream.broken import FAILURES

every_mode = pytest.mark.parametrize("keep", mostly_long(Keep, but=[Keep.LOG]))


@every_mode
@pytest.mark.parametrize(
    "name", mostly_long(FAILURES, but=["unpublished", "pruned", "damaged", "a gap"])
)
async def test_what_is_wrong_with_a_source(name: str, keep: Keep, tmp_path: Path) -> None:
    PATCHES.clear()
    trainer, wanted = Trainer(tmp_path, state_of(1)), FAILURES[name]
    for encoding in ("gap", "xor", "overwrite"):
        trainer.publish(encoding=encoding)
    kept = shutil.copytree(trainer.source, tmp_path / "kept")
    async with Served(trainer, tmp_path, boot=True, keep=keep) as served:

        async def update(version: int) -> None:
            await served.load(trainer.source, strategy="delta-pull", version=version)

        await update(1)
        wanted.breaks(trainer.source)
        with pytest.raises(StreamError) as caught:
            await update(3)
        error = caught.value
        assert (type(error), error.retryable) == (wanted.kind, wanted.retryable)
        assert error.local_version == 1
        assert wanted.says in str(error)
        served.assert_serves(trainer.states[1])

        if trainer.source.is_dir():
            shutil.rmtree(trainer.source)
        else:
            trainer.source.unlink(missing_ok=True)
        kept.rename(trainer.source)
        await update(3)
        served.assert_serves(trainer.states[3])


async def test_a_stream_on_another_base_than_the_server_s(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    other = Trainer(tmp_path / "other", state_of(2), name="source")
    other.publish(changed(other.states[0], 3))
    async with Served(trainer, tmp_path, boot=True) as served:
        with pytest.raises(BaseChanged, match="a server is started with it"):
            await served.load(directory_of(other.source, 1), strategy="delta-pull")
        served.assert_serves(trainer.states[0])
