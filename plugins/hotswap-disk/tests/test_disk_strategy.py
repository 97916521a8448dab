"""The disk strategy: a whole checkpoint or a rejection, and nothing left behind."""

import asyncio
import json
import os
import shutil
import threading
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
import torch
from hotswap_disk import DiskStrategy
from safetensors.torch import save_file

from hotswap.errors import PluginError, UpdateRejected
from hotswap.options import option_values
from hotswap.plugins import Plugins, load_plugins, resolve_strategies
from hotswap.seams import Stage
from hotswap.stream import PullPending, StreamError, pull
from hotswap.testing.raw_safetensors import entry, pack, write_directory
from hotswap.types import Placement, Readable, Update
from hotswap.weights.checkpoint import Checkpoint

GOOD = pack({"w": entry("F32", [2], 0, 8)}, torch.tensor([1.0, 2.0]).numpy().tobytes())
S1, S2 = "s1.safetensors", "s2.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_file({"w": torch.tensor([1.0, 2.0])}, directory / S1)
    save_file({"v": torch.tensor([3.0])}, directory / S2)
    index = json.dumps({"weight_map": {"w": S1, "v": S2}})
    (directory / "model.safetensors.index.json").write_text(index)
    return directory


def left_open(directory: Path) -> list[str]:
    """Descriptors and mappings of this process that lead into ``directory``."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    found += Path("/proc/self/maps").read_text().splitlines()
    return [line for line in found if str(directory) in line]


async def deliver(strategy: DiskStrategy, directory: Path | str) -> dict[str, list[float]]:
    got = {}
    async with strategy.open(Update(source=str(directory)), Placement()) as stage:
        for bucket in stage.buckets():
            for name, payload in bucket:
                assert isinstance(payload, Readable)
                out = torch.empty(payload.spec.shape, dtype=payload.spec.dtype)
                await anyio.to_thread.run_sync(payload.read_into, out)
                got[name] = out.tolist()
        assert set(stage.manifest.names) == got.keys()
        assert stage.manifest.config is not None
    return got


async def test_everything_is_delivered_and_closed(model: Path) -> None:
    assert await deliver(DiskStrategy(), model) == {"w": [1.0, 2.0], "v": [3.0]}
    assert left_open(model) == []


async def test_the_trainer_may_delete_the_directory_once_it_is_open(model: Path) -> None:
    out = {"w": torch.zeros(2), "v": torch.zeros(1)}
    async with DiskStrategy().open(Update(source=str(model)), Placement()) as stage:
        shutil.rmtree(model)
        assert not [line for line in left_open(model) if not line.endswith("(deleted)")]
        for bucket in stage.buckets():
            for name, payload in bucket:
                assert isinstance(payload, Readable)
                payload.read_into(out[name])
    assert {name: tensor.tolist() for name, tensor in out.items()} == {"w": [1, 2], "v": [3]}
    assert left_open(model) == []


@pytest.mark.parametrize("how", ["error", "cancelled", "rejected"])
async def test_nothing_is_left_however_the_update_ends(model: Path, how: str) -> None:
    async def fail() -> None:
        async with DiskStrategy().open(Update(source=str(model)), Placement()):
            assert len(left_open(model)) == 2
            if how == "cancelled":
                scope.cancel()
                await anyio.sleep_forever()
            raise UpdateRejected("a name is unknown") if how == "rejected" else RuntimeError("bug")

    with anyio.CancelScope() as scope:
        if how == "cancelled":
            await fail()
        else:
            with pytest.raises((UpdateRejected, RuntimeError)):
                await fail()
    assert scope.cancelled_caught == (how == "cancelled")
    assert left_open(model) == []


class Gate:
    """Allows everything, but holds the worker thread at its first look at a shard."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.passed = threading.Event()
        self.thread = threading.current_thread()

    def __call__(self, real: Path) -> bool:
        if real.suffix == ".safetensors":
            self.thread = threading.current_thread()
            self.reached.set()
            assert self.passed.wait(20)
        return True


@pytest.mark.timeout(60)
def test_a_task_cancelled_by_asyncio_while_opening_leaks_nothing(model: Path) -> None:
    """asyncio cancels past anyio's shield; the thread runs on by itself."""
    gate = Gate()

    async def cancelled_while_opening() -> None:
        task = asyncio.create_task(deliver(DiskStrategy(allowed=gate), model))
        await anyio.to_thread.run_sync(gate.reached.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled_while_opening())
    assert gate.thread.is_alive()
    gate.passed.set()
    gate.thread.join(20)
    assert not gate.thread.is_alive()
    assert left_open(model) == []


def pull_again(local: Path, base: Path) -> str:
    return pull(local, local, 0, base_dir=base, lock_timeout_s=0).mode


async def test_a_pull_into_the_directory_waits_until_the_update_has_read_it(model: Path) -> None:
    local = model.parent / "local"
    assert pull_again(local, model) == "seed"
    async with DiskStrategy().open(Update(source=str(local)), Placement()) as stage:
        with pytest.raises(StreamError, match="held by another pull or reader"):
            pull_again(local, model)
        assert set(stage.manifest.names) == {"w", "v"}
    assert pull_again(local, model) == "noop"
    assert await deliver(DiskStrategy(), local) == {"w": [1.0, 2.0], "v": [3.0]}
    assert left_open(local) == []


async def test_a_directory_that_a_pull_left_half_written_is_rejected(model: Path) -> None:
    local = model.parent / "local"
    pull_again(local, model)
    (local / ".weight_sync" / "journal").write_bytes(b"unfinished")
    with pytest.raises(PullPending, match="pull again"):
        await deliver(DiskStrategy(), local)
    assert left_open(local) == []
    outside = DiskStrategy(allowed=lambda real: False)
    with pytest.raises(UpdateRejected, match="outside"):
        await deliver(outside, local)
    with pytest.raises(UpdateRejected):
        await deliver(DiskStrategy(), "a\0b")


SHORT = GOOD[:-1]
BROKEN: dict[str, tuple[dict[str, bytes], object, str]] = {
    "shard missing": ({S1: GOOD}, {"w": S1, "v": S2}, S2),
    "shard short": ({S1: GOOD, S2: SHORT}, {"w": S1, "v": S2}, "'w' ends at byte 8"),
    "shard lacks its tensor": ({S1: GOOD, S2: GOOD}, {"w": S1, "v": S2}, "'v'"),
    "duplicates without index": ({S1: GOOD, S2: GOOD}, None, "'w' is in"),
    "no tensors": ({"model.safetensors": pack({})}, None, "0 tensors"),
    "no weights": ({}, None, "no weights"),
    "index leaves the directory": ({S1: GOOD}, {"w": "../s1.safetensors"}, "plain file name"),
    "index with an absolute path": ({S1: GOOD}, {"w": "/etc/x.safetensors"}, "plain file name"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_checkpoint_is_rejected(tmp_path: Path, case: str) -> None:
    files, weight_map, says = BROKEN[case]
    directory = write_directory(tmp_path / "m", files, weight_map=weight_map)
    with pytest.raises(UpdateRejected) as caught:
        await deliver(DiskStrategy(), directory)
    assert says in str(caught.value)
    assert left_open(directory) == []


async def test_old_tensors_in_the_wrong_shard_are_not_read(tmp_path: Path) -> None:
    old = pack({"w": entry("F32", [2], 0, 8), "v": entry("F32", [1], 8, 12)}, bytes(12))
    directory = write_directory(
        tmp_path / "m",
        {S1: GOOD, S2: old, "consolidated.safetensors": old},
        weight_map={"w": S1, "v": S2},
    )
    assert await deliver(DiskStrategy(), directory) == {"w": [1.0, 2.0], "v": [0.0]}


@pytest.mark.parametrize("source", ["", "missing", "model/s1.safetensors"])
async def test_a_source_that_is_no_directory_is_rejected(model: Path, source: str) -> None:
    with pytest.raises(UpdateRejected):
        await deliver(DiskStrategy(), source and model.parent / source)


async def test_a_fifo_is_rejected_without_waiting(model: Path) -> None:
    (model / S2).unlink()
    os.mkfifo(model / S2)
    with anyio.fail_after(20), pytest.raises(UpdateRejected, match="not a regular file"):
        await deliver(DiskStrategy(), model)
    assert left_open(model) == []


async def test_a_shard_that_vanishes_before_it_is_opened_is_rejected(model: Path) -> None:
    def deleting(real: Path) -> bool:
        if real.name == S1:
            (model / S2).unlink(missing_ok=True)
        return True

    with pytest.raises(UpdateRejected, match=rf"{S2}: .*No such file"):
        await deliver(DiskStrategy(allowed=deleting), model)
    assert left_open(model) == []


def made(*roots: str, **environ: str) -> DiskStrategy:
    """The strategy as a server makes it, from its own entry point."""
    plugins = load_plugins()
    assert "hotswap-disk" in [plugin.name for plugin in plugins.dists]
    options = [option for option in plugins.options if option.name == "weights-root"]
    values = option_values(options, environ=environ)
    if roots:
        values["weights-root"] = roots
    only_disk = Plugins(strategies={"disk": plugins.strategies["disk"]})
    strategy = resolve_strategies(only_disk, values)["disk"]
    assert isinstance(strategy, DiskStrategy)
    return strategy


async def test_without_a_root_any_directory_is_allowed(model: Path) -> None:
    assert repr(made()) == "<DiskStrategy in any directory>"
    assert (await deliver(made(), model)).keys() == {"w", "v"}


async def test_roots_come_from_the_environment(model: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    joined = os.pathsep.join([str(tmp_path / "other"), str(model)])
    strategy = made(HOTSWAP_WEIGHTS_ROOT=joined)
    assert repr(strategy) == f"<DiskStrategy in {tmp_path}/other, {model}>"
    assert (await deliver(strategy, model)).keys() == {"w", "v"}


async def test_outside_the_roots_is_rejected_naming_them(model: Path, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    strategy = made(str(tmp_path / "inside"))
    with pytest.raises(UpdateRejected, match=rf"{model}.*roots \({tmp_path}/inside\)"):
        await deliver(strategy, model)


async def test_what_pulls_may_write_may_be_read_besides_the_roots(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "inside").mkdir()
    shutil.copytree(model, tmp_path / "local" / "copy")
    values = {"weights-root": (str(tmp_path / "inside"),), "local-root": (str(tmp_path / "local"),)}
    strategy = DiskStrategy.from_options(values)
    assert (await deliver(strategy, tmp_path / "local" / "copy")).keys() == {"w", "v"}
    with pytest.raises(UpdateRejected, match="outside the weights roots"):
        await deliver(strategy, model)
    # Without roots for weights there is nothing to add to: any place is allowed.
    anywhere = DiskStrategy.from_options({"local-root": (str(tmp_path / "local"),)})
    assert (await deliver(anywhere, model)).keys() == {"w", "v"}


@pytest.mark.parametrize("what", ["directory", "config.json", "model.safetensors.index.json", S2])
async def test_a_link_out_of_the_roots_is_rejected(model: Path, tmp_path: Path, what: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    source = inside / "model"
    if what == "directory":
        source.symlink_to(model)
    else:
        shutil.copytree(model, source)
        (source / what).unlink()
        (source / what).symlink_to(model / what)
    with pytest.raises(UpdateRejected, match=rf"outside the weights roots \({inside}\)"):
        await deliver(made(str(inside)), source)
    assert left_open(tmp_path) == []
    assert (await deliver(made(), source)).keys() == {"w", "v"}


def test_a_root_that_is_no_directory_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=rf"'disk' cannot start: weights-root {tmp_path}/x is no"):
        made(f"{tmp_path}/x")


def test_a_root_given_as_plain_text_is_no_list_of_letters() -> None:
    with pytest.raises(ValueError, match="wanted several directories"):
        DiskStrategy.from_options({"weights-root": "/models"})


@pytest.mark.parametrize("names", [("",), ("/", " ")])
def test_an_empty_root_is_not_the_current_directory(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="no empty name"):
        DiskStrategy.from_options({"weights-root": names})


async def test_descriptors_and_threads_are_flat_over_200_opens(model: Path) -> None:
    async def once() -> Stage:
        async with DiskStrategy().open(Update(source=str(model)), Placement()) as stage:
            return stage

    await once()
    before = (len(os.listdir("/proc/self/fd")), threading.active_count())
    for _ in range(200):
        assert isinstance(await once(), Checkpoint)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
