"""``prune``: what no chain needs goes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotswap.stream import Publisher, SourceNotReady, StreamError, prune, published_versions
from hotswap.stream.disk import LocalDisk
from hotswap.stream.layout import INDEX, directory_of
from tests.unit.stream.trained import Trainer


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)


def test_prune_says_what_it_would_do_and_clears_what_was_half_removed(trainer: Trainer) -> None:
    with Publisher(trainer.source, run="a", base_dir=trainer.base, anchor_every=2) as publisher:
        for _ in range(5):
            trainer.step(publisher)
    planned = prune(trainer.source, keep=1, dry_run=True)
    assert (planned.removed, planned.kept) == ((1, 2, 3), (4, 5))
    assert published_versions(trainer.source) == (1, 2, 3, 4, 5)
    half = trainer.source / ".pruned-weight_v000001"
    directory_of(trainer.source, 1).rename(half)
    pruned = prune(trainer.source, keep=1)
    assert (pruned.removed, pruned.kept) == ((2, 3), (4, 5))
    assert not half.exists()
    trainer.check()
    with pytest.raises(StreamError, match="keep is 0, wanted 1 or more"):
        prune(trainer.source, keep=0)
    directory_of(trainer.source, 4).rename(trainer.root / "gone")
    with pytest.raises(StreamError, match="version 4 is missing"):
        prune(trainer.source, keep=1)


class _Overtaken(LocalDisk):
    """Lets another prune do everything before the first version goes."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self.others = list[tuple[int, ...]]()

    def rename(self, old: Path, new: Path) -> None:
        if not self.others:
            self.others.append(prune(self._source, keep=1).removed)
        super().rename(old, new)


def test_two_prunes_at_once_do_it_together(trainer: Trainer) -> None:
    with Publisher(trainer.source, run="a", base_dir=trainer.base, anchor_every=2) as publisher:
        for _ in range(5):
            trainer.step(publisher)
    disk = _Overtaken(trainer.source)
    pruned = prune(trainer.source, keep=1, disk=disk)
    assert (pruned.removed, pruned.kept) == ((1, 2, 3), (4, 5))
    assert disk.others == [(1, 2, 3)]
    assert published_versions(trainer.source) == (4, 5)
    assert not list(trainer.source.glob(".pruned-*"))
    trainer.check()


@pytest.mark.parametrize("begun", [False, True], ids=["empty", "without its index"])
def test_nothing_goes_for_a_version_that_is_being_written(trainer: Trainer, begun: bool) -> None:
    with Publisher(trainer.source, run="a", base_dir=trainer.base) as publisher:
        for _ in range(3):
            trainer.step(publisher)
    directory = directory_of(trainer.source, 3 if begun else 4)
    directory.mkdir(exist_ok=True)
    (directory / INDEX).unlink(missing_ok=True)
    before = published_versions(trainer.source)
    with pytest.raises(SourceNotReady):
        prune(trainer.source, keep=1)
    assert published_versions(trainer.source) == before
    trainer.check(2)
