"""Fifty sparse commits in a row leave what a fresh server has, and nothing behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from hotswap.sparse.cache import PATCHES
from hotswap.testing.checkpoints import make_checkpoint
from tests.process.evidence import Evidence, assert_equal
from tests.process.fresh import fresh
from tests.process.in_process import load, serving
from tests.process.stream_publisher import publisher

pytestmark = [pytest.mark.process, pytest.mark.long]

COMMITS = 50


@pytest.mark.parametrize("tied", [False, True])
async def test_the_oracle_after_fifty_sparse_commits(tmp_path: Path, tied: bool) -> None:
    """A tied model in bf16 whose checkpoints are float32: fused, tied and cast at once."""
    PATCHES.clear()
    base = make_checkpoint(tmp_path / "base", seed=3, tied=tied)
    source, local, draw = tmp_path / "source", tmp_path / "local", random.Random(int(tied))
    options = {"dtype": torch.bfloat16} if tied else {}
    async with (
        publisher(base, source, tmp_path / "expected") as trains,
        serving(load(base, **options), model=str(base)) as server,
    ):
        client, version, modes = server.client, 0, list[str]()

        async def pull(target: int) -> None:
            await client.done(
                "/pull_weights",
                local_checkpoint_dir=str(local),
                source_dir=str(source),
                target_version=target,
            )

        await pull(0)
        await client.update(local)
        for _ in range(COMMITS):
            for _ in range(draw.choice([1, 1, 1, 2, 3])):
                version += 1
                expected = await trains.publish(version, draw.choice(["xor", "overwrite", "gap"]))
                if draw.random() < 0.3:
                    await pull(version)
            await pull(version)
            reply = await client.update(local, weight_version=str(version))
            modes.append(reply["mode"])
        assert modes == ["sparse"] * COMMITS
        seen = await Evidence.of(client)
        if tied:
            async with serving(load(expected, **options)) as started:
                assert_equal(seen, await Evidence.of(started.client))
        else:
            assert_equal(seen, await fresh(expected))
        # And so does a load of everything, on the same server.
        await client.update(local)
        assert_equal(await Evidence.of(client), seen)
        assert len(PATCHES) == 0
