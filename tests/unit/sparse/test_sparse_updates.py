"""The update after a pull writes what has changed, and the weights are those of a fresh server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hotswap.errors import UpdateFailed, UpdateRejected, UpdateRolledBack
from hotswap.sparse.cache import PATCHES
from hotswap.state import State
from hotswap.stream import LocalDamaged
from hotswap.testing.tiny_modules import TinyModel
from hotswap.types import LoadMode, Scope
from tests.tiers import mostly_long
from tests.unit.sparse.rig import Served, Trainer, changed, state_of

ENCODINGS = ("xor", "overwrite", "gap")
both_modes = pytest.mark.parametrize("mode", LoadMode)
either_mode = pytest.mark.parametrize("mode", mostly_long(LoadMode, but=[LoadMode.STAGED]))
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS)
any_encoding = pytest.mark.parametrize("encoding", mostly_long(ENCODINGS, but=["gap"]))


@both_modes
@every_encoding
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
            assert report.bytes_applied < first.bytes_applied
            assert report.tensors_applied == first.tensors_applied
            assert report.stamp.version == str(version)
        assert len(PATCHES) == 0


async def test_the_first_one_too_where_the_server_was_started_on_the_base(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path, boot=True) as served:
        await served.pull(0)
        report = await served.step()
        assert report.commit_mode == "sparse"
        served.assert_serves(trainer.states[1])


@pytest.mark.parametrize(
    ("published", "live", "tied", "padding"),
    [
        (torch.bfloat16, torch.bfloat16, False, 0),
        (torch.bfloat16, torch.float32, False, 3),
        (torch.float32, torch.bfloat16, False, 0),
        (torch.float16, torch.float64, True, 2),
        (torch.float32, torch.float32, True, 0),
    ],
)
@any_encoding
async def test_casts_ties_and_padding(
    tmp_path: Path,
    published: torch.dtype,
    live: torch.dtype,
    tied: bool,
    padding: int,
    encoding: str,
) -> None:
    trainer = Trainer(tmp_path, state_of(1, tied=tied, dtype=published))
    model = TinyModel(tied=tied, padding=padding).to(live)
    async with Served(trainer, tmp_path, model) as served:
        await served.pull(0)
        await served.load()
        for _ in range(2):
            await served.pull(trainer.publish(encoding=encoding))
            assert (await served.load()).commit_mode == "sparse"
            served.assert_serves(trainer.states[-1])


async def test_tied_names_that_change_alike_are_written_once_and_others_load_it_all(
    tmp_path: Path,
) -> None:
    state = state_of(1, tied=True)
    trainer = Trainer(tmp_path, {**state, "head.weight": state["embed.weight"].clone()})
    async with Served(trainer, tmp_path, TinyModel(tied=True)) as served:
        await served.pull(0)
        await served.load()
        both = dict(trainer.states[0])
        for name in ("embed.weight", "head.weight"):
            both[name] = both[name].clone()
            both[name][2, 3] = 7.0
        await served.pull(trainer.publish(both))
        report = await served.load()
        assert (report.commit_mode, report.elements_moved) == ("sparse", 1)
        served.assert_serves(both)
        one = {**both, "head.weight": both["head.weight"] + 1}
        await served.pull(trainer.publish(one))
        with pytest.raises(UpdateRejected, match="tied"):
            await served.load()
        served.assert_serves(both)


async def test_ten_versions_at_once(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        await served.load()
        for number in range(10):
            trainer.publish(encoding=("xor", "gap", "overwrite")[number % 3])
        await served.pull(10)
        assert (await served.load()).commit_mode == "sparse"
        served.assert_serves(trainer.states[10])
        for _ in range(10):
            await served.pull(trainer.publish())
        assert len(PATCHES) == 10
        assert (await served.load()).commit_mode == "sparse"
        served.assert_serves(trainer.states[20])


async def test_a_version_in_which_nothing_changed_moves_nothing(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        await served.load()
        await served.pull(trainer.publish(trainer.states[0]))
        report = await served.load(version=1)
        assert (report.commit_mode, report.elements_moved) == ("sparse", 0)
        assert (report.stamp.version, report.stamp.epoch) == ("1", 2)


async def test_delta_pull_in_one_call(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        found = list[str]()
        for _ in range(3):
            version = trainer.publish()
            report = await served.load(trainer.source, strategy="delta-pull", version=version)
            served.assert_serves(trainer.states[version])
            found.append(report.commit_mode)
        assert found == ["full", "sparse", "sparse"]


Between = Callable[[Served], Awaitable[object]]


async def _relabel(served: Served) -> None:
    await served.controller.relabel("2")


async def _relabel_as_it_was(served: Served) -> None:
    await served.controller.relabel(str(served.controller.stamp.version))


async def _other_update(served: Served) -> None:
    folder = served.trainer.base.with_name("other")
    await served.load(served.trainer.write(folder, state_of(9)))


async def _base_update(served: Served) -> None:
    await served.load(served.trainer.base)


async def _part(served: Served) -> None:
    folder = served.trainer.base.with_name("part")
    part = {"mean": torch.ones(4)}
    await served.load(served.trainer.write(folder, part), scope=Scope.PARTIAL)


async def _reset(served: Served) -> None:
    await served.controller.reset()


async def _roll_back(served: Served) -> None:
    served.engine.fails += ["patch"]
    await served.pull(served.trainer.publish())
    before = served.target.checksums()
    with pytest.raises(UpdateRolledBack, match=r"injected at a patch.*put back"):
        await served.load(version=9)
    assert served.target.checksums() == before
    assert served.controller.machine.state is State.SERVING
    assert served.controller.stamp.version == "1"


async def _fail_to_undo(served: Served) -> None:
    served.engine.fails += ["patch", "commit"]
    await served.pull(served.trainer.publish())
    with pytest.raises(UpdateFailed, match=r"injected at a commit, after .* at a patch"):
        await served.load(version=9)
    assert served.controller.machine.state is State.INVALID


async def _torn(served: Served) -> None:
    served.engine.fails += ["commit", "commit"]
    with pytest.raises(UpdateFailed):
        await served.load(served.trainer.base)


async def _another_source(served: Served) -> None:
    other = Trainer(served.trainer.base.parent, served.trainer.states[0], name="another")
    other.publish(changed(other.states[0], 77))
    await served.pull(1, source=other.source)
    await served.pull(1)


async def _backwards(served: Served) -> None:
    await served.pull(0)


async def _train(served: Served) -> None:
    with torch.no_grad():
        served.model.layer.scale.add_(1.0)


async def _cast(served: Served) -> None:
    served.model.bfloat16().float()


async def _edit(served: Served) -> None:
    path = served.local / "model.safetensors"
    state = dict(served.trainer.states[-1])
    save_file({**state, "mean": state["mean"] + 1}, path)


async def _touch(served: Served) -> None:
    os.utime(served.local / "model.safetensors")


async def _small_cache(served: Served) -> None:
    PATCHES.limit_bytes = 40


async def _no_cache(served: Served) -> None:
    PATCHES.limit_bytes = 0


@either_mode
@pytest.mark.parametrize(
    "between",
    [
        _relabel,
        _relabel_as_it_was,
        _other_update,
        _base_update,
        _part,
        _reset,
        _roll_back,
        _fail_to_undo,
        _torn,
        _another_source,
        _backwards,
        _train,
        _cast,
        _edit,
        _touch,
        _small_cache,
        _no_cache,
    ],
    ids=lambda between: between.__name__.strip("_"),
)
async def test_after_anything_else_all_is_loaded_once_and_then_it_is_sparse_again(
    tmp_path: Path, between: Between, mode: LoadMode
) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        await served.load(version=0)
        assert (await served.step(mode)).commit_mode == "sparse"
        await between(served)
        assert (await served.step(mode)).commit_mode == "full"
        served.assert_serves(trainer.states[-1])
        PATCHES.limit_bytes = 2**20
        assert (await served.step(mode)).commit_mode == "sparse"
        served.assert_serves(trainer.states[-1])


async def test_what_is_edited_after_the_pull_is_not_loaded(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        await served.load()
        await served.pull(trainer.publish())
        edited = {**trainer.states[1], "mean": torch.ones(4)}
        save_file(edited, served.local / "model.safetensors")
        with pytest.raises(LocalDamaged, match="tensor 'mean' has the checksum"):
            await served.load()
        served.assert_serves(trainer.states[0])
        await served.pull(1)
        assert (await served.load()).commit_mode == "full"
        served.assert_serves(trainer.states[1])


async def test_a_restart_knows_nothing(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        await served.load()
        await served.step()
        await served.pull(trainer.publish())
    async with Served(trainer, tmp_path, boot=True) as served:
        # What the process has kept leads from version 1, and live is the base.
        assert (await served.load()).commit_mode == "full"
        served.assert_serves(trainer.states[2])
        assert (await served.step()).commit_mode == "sparse"
        served.assert_serves(trainer.states[3])


async def test_a_refused_update_changes_nothing_about_the_next(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        await served.load()
        with pytest.raises(UpdateRejected):
            await served.load(tmp_path / "nowhere")
        assert (await served.step()).commit_mode == "sparse"
        served.assert_serves(trainer.states[1])


async def test_the_same_directory_again_is_loaded(tmp_path: Path) -> None:
    """To send an update again is how people repair weights that something else has spoilt."""
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path) as served:
        await served.pull(0)
        await served.load()
        assert (await served.load()).commit_mode == "full"
        assert (await served.step()).commit_mode == "sparse"
        assert (await served.load()).commit_mode == "full"
        served.assert_serves(trainer.states[1])


async def test_copies_of_the_base_in_two_directories(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    version = trainer.publish()
    async with Served(trainer, tmp_path, boot=True) as served:
        for _ in range(2):
            await served.pull(0)
            await served.pull(version)
            served.local = served.local.with_name("second")
        served.local = tmp_path / "local"
        assert len(PATCHES) == 2
        assert (await served.load()).commit_mode == "sparse"
        served.assert_serves(trainer.states[1])
        shutil.rmtree(served.local)
        served.local = tmp_path / "second"
        assert (await served.load()).commit_mode == "full"
        served.assert_serves(trainer.states[1])


async def test_nans_that_are_cast_load_it_all(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path, TinyModel().bfloat16()) as served:
        await served.pull(0)
        await served.load()
        nan = {**trainer.states[0], "mean": torch.tensor([1.0, float("nan"), 2.0, 3.0])}
        await served.pull(trainer.publish(nan))
        assert (await served.load()).commit_mode == "full"
        served.assert_serves(nan)
