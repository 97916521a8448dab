"""What happens while a sparse commit is staged or written, and how it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from hotswap.errors import UpdateRolledBack
from hotswap.sparse import Base
from hotswap.sparse.commit import SparseTransaction
from hotswap.sparse.live_origin import LiveOrigin
from hotswap.sparse.scatter import LiveChanges
from hotswap.types import LoadMode, Scope, WeightStamp
from hotswap.weights.checkpoint import Checkpoint
from tests.unit.sparse.rig import Served, Trainer, load, state_of

both_modes = pytest.mark.parametrize("mode", LoadMode)


@both_modes
async def test_weights_that_change_while_it_is_staged(tmp_path: Path, mode: LoadMode) -> None:
    """Its turn comes after another command's: what it has remembered is of no use any more."""
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        await served.load()
        await served.pull(trainer.publish())
        looks = list[int]()

        async def reset_once() -> None:
            looks.append(1)
            if len(looks) == 1:
                await served.controller.reset()

        served.engine.looked = reset_once
        assert (await served.load(mode=mode)).commit_mode == "full"
        served.assert_serves(trainer.states[1])
        assert looks == [1]


async def test_cancelled_while_it_is_staged(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        await served.load()
        await served.pull(trainer.publish())
        reached = anyio.Event()

        async def stand_still() -> None:
            reached.set()
            await anyio.sleep_forever()

        served.engine.looked = stand_still
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.load)
            await reached.wait()
            tasks.cancel_scope.cancel()
        served.assert_serves(trainer.states[0])
        served.engine.looked = anyio.lowlevel.checkpoint
        assert (await served.load()).commit_mode == "sparse"
        served.assert_serves(trainer.states[1])


@pytest.mark.parametrize("turns", range(0, 40, 4))
async def test_cancelled_anywhere_it_is_all_old_or_all_new(tmp_path: Path, turns: int) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        await served.load(version=0)
        await served.pull(trainer.publish())
        update = asyncio.create_task(served.load(version=1))
        for _ in range(turns):
            await asyncio.sleep(0)
        update.cancel()
        await asyncio.wait([update])
        live = int(str(served.controller.stamp.version))
        served.assert_serves(trainer.states[live])
        assert served.controller.queue.idle
        await served.load(version=1)
        served.assert_serves(trainer.states[1])


@pytest.mark.parametrize("done", [0, 1])
@pytest.mark.parametrize("fails", ["patch", "commit"])
async def test_a_commit_that_fails_leaves_what_was_there(
    tmp_path: Path, fails: str, done: int
) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        await served.load(version=0)
        recomputed = served.model.layer.recomputed
        await served.pull(trainer.publish())
        served.engine.fails, served.engine.done = [fails], done
        with pytest.raises(UpdateRolledBack, match=f"injected at a {fails}"):
            await served.load(version=1)
        served.assert_serves(trainer.states[0])
        assert (served.controller.stamp.version, served.controller.stamp.epoch) == ("0", 1)
        assert served.engine.stamp == served.controller.stamp
        assert served.model.layer.recomputed > recomputed
        assert served.controller.counters.updates["disk", "rolled_back"] == 1
        assert (await served.load(version=1)).commit_mode == "full"
        served.assert_serves(trainer.states[1])


async def test_what_cannot_be_staged_is_loaded(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        await served.load()
        await served.pull(trainer.publish())

        async def fail() -> None:
            raise MemoryError("no room to remember")

        served.engine.looked = fail
        assert (await served.load()).commit_mode == "full"
        served.assert_serves(trainer.states[1])


async def test_it_ends_once_and_says_how(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        load(served.target, trainer.base)
        with Checkpoint.open(trainer.base) as checkpoint:
            plan = served.target.plan(checkpoint.manifest, Scope.FULL)
        live, stamp = Base(path="/base", digest="b"), WeightStamp()
        origin = LiveOrigin(live)
        assert origin.of(stamp, plan) == live
        origin.forget()
        assert repr(origin) == "<LiveOrigin unknown epoch 0>"
        transaction = SparseTransaction(
            served.engine,
            plan,
            LiveChanges([], tensors=0),
            live=live,
            patches=[],
            before=stamp,
        )
        assert repr(transaction) == "<SparseTransaction open <LiveChanges 0 tensors, 0 bytes>>"
        await served.gate.close()
        await transaction.commit(replace(stamp, epoch=1))
        assert (transaction.outcome, transaction.touched) == ("committed", True)
        with pytest.raises(RuntimeError, match="has ended; begin a new transaction"):
            await transaction.commit(stamp)
