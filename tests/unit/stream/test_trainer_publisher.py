"""``Publisher``: what it writes is what readers get, over restarts, anchors and failures."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from hotswap.errors import UpdateRejected
from hotswap.stream import (
    Progress,
    Publisher,
    StreamError,
    VersionMissing,
    published_versions,
)
from hotswap.stream.aggregate import DIRECTORY
from hotswap.stream.layout import INDEX, directory_of, read_index
from hotswap.stream.publisher_tensors import host_tensors
from hotswap.weights.folder import Folder
from tests.unit.stream.faulty_disk import FaultyDisk, failing
from tests.unit.stream.streams import contents_of
from tests.unit.stream.trained import (
    Trainer,
    after_step,
    bytes_in,
)


@pytest.mark.parametrize("encoding", ["gap", "xor", "overwrite"])
def test_readers_get_what_was_published(encoding: str, trainer: Trainer) -> None:
    with Publisher(
        trainer.source, run="a", base_dir=trainer.base, encoding=encoding, threads=2
    ) as publisher:
        for _ in range(3):
            trainer.step(publisher)
            trainer.check()
        assert repr(publisher) == f"<Publisher {trainer.source} run 'a' at version 3>"
    trainer.check(3, name="late")
    with Folder.open(directory_of(trainer.source, 2)) as folder:
        index = read_index(folder, version=2, names=trainer.states[0])
    assert index is not None
    assert (index.encoding, index.base_version) == (encoding, 1)


def test_a_restart_goes_on_from_what_readers_have(trainer: Trainer) -> None:
    for _ in range(3):
        with Publisher(trainer.source, run="a", base_dir=trainer.base) as publisher:
            assert publisher.version == len(trainer.states) - 1
            trainer.step(publisher)
            trainer.step(publisher)
        trainer.check()
    # From an iterable nobody knows which tensors will come.
    with Publisher(trainer.source, run="a", base_dir=trainer.base) as publisher:
        state = after_step(trainer.states[-1], 50)
        publisher.publish(iter(state.items()))
    trainer.states.append(state)
    trainer.check()


def test_without_a_base_the_first_version_is_full(trainer: Trainer) -> None:
    with Publisher(trainer.source, run="a") as publisher:
        first = publisher.publish(iter(trainer.states[0].items()))
        assert (first.full, first.changed) == (True, len(trainer.states[0]))
        trainer.states.append(trainer.states[0])
        trainer.step(publisher)
    with Publisher(trainer.source, run="a") as publisher:
        trainer.step(publisher)
    trainer.check()


def test_a_snapshot_of_what_servers_began_with(trainer: Trainer) -> None:
    with Publisher(trainer.source, run="a") as publisher:
        publisher.start_from(trainer.states[0])
        trainer.step(publisher)
        with pytest.raises(StreamError, match="start_from is for the beginning"):
            publisher.start_from(trainer.states[0])
    trainer.check()
    with (
        Publisher(trainer.source, run="a") as publisher,
        pytest.raises(VersionMissing, match="give base_dir"),
    ):
        publisher.publish(trainer.states[0])


def test_anchors_are_checkpoints_of_everything(trainer: Trainer) -> None:
    with Publisher(trainer.source, run="a", base_dir=trainer.base, anchor_every=2) as publisher:
        for _ in range(2):
            trainer.step(publisher)
        # Two tensors alone: the others stay what they were, in an anchor too.
        some = {name: trainer.states[-1][name] for name in ("embed.weight", "step")}
        third = publisher.publish(some)
        assert (third.full, third.changed) == (False, 0)
        assert publisher.publish(after_step(some | trainer.states[-1], 9)).full
    trainer.states += [trainer.states[-1], after_step(trainer.states[-1], 9)]
    trainer.check(3)
    assert contents_of(directory_of(trainer.source, 4)) == bytes_in(trainer.states[4])
    assert (directory_of(trainer.source, 4) / "config.json").exists()
    trainer.check()


def test_an_anchor_after_a_restart_has_what_is_no_longer_given(trainer: Trainer) -> None:
    with Publisher(trainer.source, run="a", base_dir=trainer.base) as publisher:
        trainer.step(publisher)
    with Publisher(
        trainer.source, run="a", base_dir=trainer.base, anchor_every=2, aggregate_every=2
    ) as publisher:
        publisher.publish({"step": trainer.states[-1]["step"]})
    trainer.states.append(trainer.states[-1])
    assert contents_of(directory_of(trainer.source, 2)) == bytes_in(trainer.states[2])
    trainer.check(2)


def test_an_anchor_of_a_run_that_began_with_a_snapshot(trainer: Trainer) -> None:
    with Publisher(trainer.source, run="a", anchor_every=2) as publisher:
        publisher.start_from(trainer.states[0])
        trainer.step(publisher)
        trainer.step(publisher)
    assert contents_of(directory_of(trainer.source, 2)) == bytes_in(trainer.states[2])
    trainer.check()


def test_an_aggregate_takes_late_readers_there_at_once(trainer: Trainer) -> None:
    with Publisher(trainer.source, run="a", base_dir=trainer.base, aggregate_every=2) as publisher:
        for _ in range(5):
            trainer.step(publisher)
    assert sorted(os.listdir(trainer.source / DIRECTORY)) == [
        "model-00000-of-00001.safetensors",
        INDEX,
    ]
    index = json.loads((trainer.source / DIRECTORY / INDEX).read_text())
    assert index["metadata"]["version"] == "000004"
    # Only the aggregate leads there now.
    for version in (1, 2, 3, 4):
        directory_of(trainer.source, version).rename(trainer.root / f"gone-{version}")
    trainer.check()


ODD = {
    "one, of stride 0": torch.tensor(1.5).expand(1),
    "one of two dimensions, of stride 0": torch.tensor(1.5).expand(1, 1),
    "none, of numpy": torch.from_numpy(np.empty(0, np.float32)),
    "one, of numpy": torch.from_numpy(np.array([2.5], np.float32)),
    "many, of stride 0": torch.tensor(1.5).expand(3, 2),
    "every other": torch.arange(12.0)[1::2],
    "turned": torch.arange(6.0).reshape(2, 3).T,
    "no dimension": torch.arange(3.0)[2],
    "negative for who looks": torch.complex(torch.zeros(3), torch.arange(1.0, 4.0)).conj().imag,
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_tensors_of_odd_strides(odd: torch.Tensor) -> None:
    [host] = host_tensors({"odd": odd})
    assert (host.dtype, host.shape) == ("F32", tuple(odd.shape))
    assert host.content.tobytes() == np.array(odd.tolist(), np.float32).tobytes()


def test_numpy_arrays_and_tensors_that_are_not_contiguous(trainer: Trainer) -> None:
    state = after_step(trainer.states[0], 1)
    turned = state["layers.0.weight"].T.contiguous().T
    assert not turned.is_contiguous()
    mixed: dict[str, Any] = {"layers.0.weight": turned, "step": np.array(1)}
    with Publisher(trainer.source, run="a", base_dir=trainer.base) as publisher:
        publisher.publish(mixed)
    trainer.states.append(trainer.states[0] | {"layers.0.weight": turned, "step": torch.tensor(1)})
    trainer.check()


def test_parameters_that_a_trainer_goes_on_with(trainer: Trainer) -> None:
    """What changes after publish has returned is in the next version, wherever it was."""
    live = {name: value.clone() for name, value in trainer.states[0].items()}
    live["embed.weight"] = torch.nn.Parameter(live["embed.weight"])
    with Publisher(trainer.source, run="a", base_dir=trainer.base) as publisher:
        for step in (1, 2, 3):
            for name, value in after_step(live, step).items():
                live[name].data.copy_(value.data)
            publisher.publish(live)
            trainer.states.append({name: one.detach().clone() for name, one in live.items()})
            trainer.check()


@pytest.mark.parametrize("anchor_every", [0, 1])
def test_a_disk_that_fails_at_any_call(anchor_every: int, tmp_path: Path) -> None:
    """Readers never see a half version, and the next publish goes on."""
    counting = FaultyDisk()
    probe = Trainer(tmp_path / "probe")
    with Publisher(
        probe.source, run="a", base_dir=probe.base, anchor_every=anchor_every, disk=counting
    ) as publisher:
        begin = len(counting.calls)
        probe.step(publisher)
    assert len(counting.calls) - begin >= 8
    for number, at in enumerate(range(begin, len(counting.calls))):
        trainer = Trainer(tmp_path / f"at-{at}")
        disk = failing(at, errno.ENOSPC if number % 2 else errno.EIO)
        with Publisher(
            trainer.source, run="a", base_dir=trainer.base, anchor_every=anchor_every, disk=disk
        ) as publisher:
            with pytest.raises(OSError):  # noqa: PT011
                trainer.step(publisher)
            seen = published_versions(trainer.source)
            if seen:
                # The version was there already, and its name was not yet durable.
                trainer.states.append(after_step(trainer.states[0], 1))
                trainer.check()
            else:
                assert not list(trainer.source.glob(".weight_v*"))
            trainer.step(publisher)
        trainer.check()


def test_hooks_are_awaited_when_the_version_is_there(trainer: Trainer) -> None:
    heard = list[tuple[str, str | None, bool]]()

    async def note(directory: str, version: str | None) -> None:
        heard.append((directory, version, INDEX in os.listdir(directory)))

    async def fail(directory: str, version: str | None) -> None:
        if version == "000002":
            raise UpdateRejected("no route to the bucket")

    with Publisher(
        trainer.source, run="a", base_dir=trainer.base, post_write=[note, fail]
    ) as publisher:
        trainer.step(publisher)
        state = after_step(trainer.states[-1], 2)
        with pytest.raises(UpdateRejected, match="no route to the bucket"):
            publisher.publish(state)
        assert publisher.version == 2
        trainer.states.append(state)
        trainer.step(publisher)
    assert heard == [(str(directory_of(trainer.source, n)), f"{n:06d}", True) for n in (1, 2, 3)]
    trainer.check()


def test_a_hook_that_fails_keeps_no_version_from_being_pruned(trainer: Trainer) -> None:
    async def fail(directory: str, version: str | None) -> None:
        raise UpdateRejected("no route to the bucket")

    with Publisher(trainer.source, run="a", anchor_every=1, keep=1, post_write=[fail]) as publisher:
        for step in (1, 2):
            with pytest.raises(UpdateRejected, match="no route to the bucket"):
                publisher.publish(after_step(trainer.states[0], step))
    assert published_versions(trainer.source) == (2,)


async def test_hooks_run_beside_a_loop_that_is_running(trainer: Trainer) -> None:
    heard = list[str | None]()

    async def note(directory: str, version: str | None) -> None:
        heard.append(version)

    with Publisher(trainer.source, run="a", base_dir=trainer.base, post_write=[note]) as publisher:
        trainer.step(publisher)
    assert heard == ["000001"]


def test_old_versions_go_and_no_chain_is_cut(trainer: Trainer) -> None:
    with Publisher(
        trainer.source, run="a", base_dir=trainer.base, anchor_every=3, keep=2
    ) as publisher:
        for _ in range(3):
            trainer.step(publisher)
        # 2 needs the base: everything that leads to it stays.
        assert published_versions(trainer.source) == (1, 2, 3)
        trainer.step(publisher)
        assert published_versions(trainer.source) == (3, 4)
        trainer.check(3, name="behind")
        for _ in range(3):
            trainer.step(publisher)
        assert published_versions(trainer.source) == (6, 7)
    trainer.check(7, name="behind")
    trainer.check(7, name="late")


def test_progress_is_told(trainer: Trainer) -> None:
    told = list[Progress]()
    with Publisher(
        trainer.source, run="a", base_dir=trainer.base, progress=told.append
    ) as publisher:
        state = after_step(trainer.states[0], 1)
        published = publisher.publish(state)
    assert published.seconds.keys() >= {"diff", "write", "restore"}
    total = sum(value.nbytes for value in state.values())
    assert max(one.done_bytes for one in told if one.phase == "diff") == total
    assert published.written_bytes == sum(
        file.stat().st_size
        for file in directory_of(trainer.source, 1).iterdir()
        if file.name != INDEX
    )


def test_tensors_are_asked_for_as_they_are_needed(trainer: Trainer) -> None:
    """A trainer that gathers each tensor when it is asked for never holds all of them."""
    asked = list[weakref.ref[Any]]()
    most = 0

    def gathered() -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        nonlocal most
        for number in range(40):
            tensor = np.full(1000, float(number))
            asked.append(weakref.ref(tensor))
            most = max(most, sum(one() is not None for one in asked))
            yield f"t{number}", tensor
            del tensor

    with Publisher(trainer.source, run="a", threads=1) as publisher:
        publisher.publish(gathered())
    assert most < 10
    assert len(contents_of(directory_of(trainer.source, 1))) == 40


def test_a_trainer_needs_no_server(tmp_path: Path) -> None:
    """numpy arrays are published with torch, which hotswap needs, and nothing of the server."""
    code = f"""
import sys, numpy
from pathlib import Path
from hotswap.stream import Publisher
assert "torch" not in sys.modules
with Publisher(Path({str(tmp_path / "source")!r}), run="a", threads=1) as publisher:
    publisher.publish({{"w": numpy.zeros(3, numpy.float32)}})
assert "starlette" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_iterable_of_what_was_not_given_before(trainer: Trainer) -> None:
    state = after_step(trainer.states[0], 1)
    first, *others = sorted(state)
    with Publisher(trainer.source, run="a", base_dir=trainer.base, threads=1) as publisher:
        publisher.publish({first: state[first]})
        publisher.publish((name, state[name]) for name in others)
    trainer.states += [{**trainer.states[0], first: state[first]}, state]
    trainer.check(1, name="first")
    trainer.check()


@pytest.mark.parametrize("name", ["__metadata__", "a\ud800"])
def test_a_name_that_nobody_could_read_back(name: str, trainer: Trainer) -> None:
    with Publisher(trainer.source, run="a", base_dir=trainer.base, threads=1) as publisher:
        with pytest.raises(StreamError, match="cannot be published: the format keeps"):
            publisher.publish(iter([(name, trainer.states[0]["embed.weight"])]))
        with pytest.raises(TypeError, match="the name of a tensor is 7, wanted a text"):
            publisher.publish(cast(Any, iter([(7, torch.ones(1))])))
    assert not published_versions(trainer.source)


def test_a_first_version_of_nothing(trainer: Trainer) -> None:
    """An exhausted generator, say."""
    with Publisher(trainer.source, run="a", threads=1) as publisher:
        nothings: list[Any] = [{}, iter(())]
        for nothing in nothings:
            with pytest.raises(StreamError, match="no tensor was given, wanted all of the model's"):
                publisher.publish(nothing)
        assert publisher.publish(trainer.states[0]).version == 1
