"""An update from a local copy in which a bit has turned: refused, mended by a pull, and served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.pulls.guarded import CopyGuard
from hotswap.pulls.logged import held_checkpoint
from hotswap.sparse.cache import PATCHES
from hotswap.state import Change
from hotswap.stream import Keep, LocalDamaged, directory_of, pull
from hotswap.testing.delivered import delivered
from hotswap.types import LoadMode
from tests.tiers import mostly_long
from tests.unit.sparse.rig import Served, Trainer, checksums, state_of
from tests.unit.stream.test_damaged_copies import a_blob

ENCODINGS = ("xor", "overwrite", "gap")


def a_plain_file(local: Path) -> None:
    """The last tensor of the file, which no version of these tests changes."""
    path = local / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


WAYS = [
    (Keep.FILES, a_plain_file),
    (Keep.COPIES, a_plain_file),
    (Keep.LOG, a_plain_file),
    (Keep.LOG, a_blob),
]


@pytest.mark.parametrize("encoding", mostly_long(ENCODINGS, but=["gap"]))
@pytest.mark.parametrize(("keep", "damage"), WAYS)
async def test_it_is_not_served_and_the_next_pull_mends_it(
    tmp_path: Path, encoding: str, keep: Keep, damage: Callable[[Path], None]
) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path, keep=keep) as served:
        before = checksums(served.target)
        await served.pull(0)
        await served.pull(trainer.publish(encoding=encoding))
        PATCHES.clear()
        damage(served.local)
        # Nobody has looked, and a pull of what is there looks at nothing.
        await served.pull(1)
        with pytest.raises(LocalDamaged, match="pull it again, which makes the copy anew") as told:
            await served.load(version=1)
        assert "publish it again" not in str(told.value)
        assert not told.value.retryable
        assert checksums(served.target) == before
        await served.pull(1)
        await served.load(version=1)
        served.assert_serves(trainer.states[1])


@pytest.mark.parametrize("mode", LoadMode)
@pytest.mark.parametrize("keep", mostly_long(Keep, but=[Keep.FILES, Keep.LOG]))
async def test_delta_pull_mends_it_when_it_is_asked_again(
    tmp_path: Path, keep: Keep, mode: LoadMode
) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path, boot=True, keep=keep) as served:
        at = directory_of(trainer.source, trainer.publish())
        await served.load(at, strategy="delta-pull", mode=mode)
        PATCHES.clear()
        [copy] = served.copies.iterdir()
        a_plain_file(copy)
        with pytest.raises(LocalDamaged) as told:
            await served.load(at, strategy="delta-pull", mode=mode)
        assert told.value.retryable
        served.assert_serves(trainer.states[1])
        report = await served.load(at, strategy="delta-pull", mode=mode)
        assert report.commit_mode == "full"
        served.assert_serves(trainer.states[1])


@pytest.mark.parametrize("encoding", mostly_long(ENCODINGS, but=["gap"]))
@pytest.mark.parametrize(("keep", "damage"), WAYS)
async def test_straight_into_the_weights_it_is_found_before_anything_stops(
    tmp_path: Path, encoding: str, keep: Keep, damage: Callable[[Path], None]
) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path, boot=True, keep=keep) as served:
        await served.pull(0)
        await served.pull(trainer.publish(encoding=encoding))
        PATCHES.clear()
        await served.load(trainer.base)  # nobody knows what changed since: all of it is read
        damage(served.local)
        stopped = list[Change]()
        served.controller.machine.observe(stopped.append)
        with pytest.raises(LocalDamaged, match="pull it again, which makes the copy anew"):
            await served.load(version=1, mode=LoadMode.DIRECT)
        assert stopped == []
        served.assert_serves(trainer.states[0])
        await served.pull(1)
        report = await served.load(version=1, mode=LoadMode.DIRECT)
        assert report.commit_mode == "full"
        served.assert_serves(trainer.states[1])


@pytest.mark.parametrize("keep", Keep)
def test_what_was_looked_at_before_writing_is_not_looked_at_again(
    tmp_path: Path, keep: Keep
) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    local = tmp_path / "local"
    for version in (0, trainer.publish()):
        pull(local, trainer.source, version, base_dir=trainer.base, keep=keep)
    looks = list[str]()
    for first in (False, True):
        with held_checkpoint(local) as checkpoint:
            checkpoint.before_bucket = lambda _: looks.append("bucket")
            checkpoint.before_writing = lambda _: looks.append("all")
            if first:
                list(checkpoint.check_before_writing())
            assert delivered(checkpoint.buckets()).keys() == trainer.states[1].keys()
    assert looks == ["bucket", "all"]
    a_plain_file(local)
    with held_checkpoint(local) as checkpoint, pytest.raises(LocalDamaged, match="pull it again"):
        list(checkpoint.check_before_writing())


async def test_where_nothing_can_be_written_down_another_pull_is_advised(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path, boot=True) as served:
        await served.pull(trainer.publish())
        PATCHES.clear()
        a_plain_file(served.local)
        (served.local / ".weight_sync" / "suspect").mkdir()
        with pytest.raises(LocalDamaged, match=r'again with "check": true') as told:
            await served.load(version=1)
        assert not told.value.retryable
        await served.puller.pull(str(served.local), str(trainer.source), 1, check=True)
        await served.load(version=1)
        served.assert_serves(trainer.states[1])


def test_what_no_pull_keeps_is_delivered_as_it_is(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    with held_checkpoint(trainer.base) as checkpoint:
        assert checkpoint.before_bucket is None
        list(checkpoint.check_before_writing())
        assert delivered(checkpoint.buckets()).keys() == trainer.states[0].keys()


def test_who_loads_it_by_itself_is_told_too(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    local = tmp_path / "local"
    pull(local, trainer.source, 0, base_dir=trainer.base)
    with held_checkpoint(local) as checkpoint:
        assert delivered(checkpoint.buckets()).keys() == trainer.states[0].keys()
    a_plain_file(local)
    with held_checkpoint(local) as checkpoint, pytest.raises(LocalDamaged, match="pull it again"):
        delivered(checkpoint.buckets())
    assert repr(CopyGuard({}, damaged=LocalDamaged)) == "<CopyGuard 0 tensors>"
