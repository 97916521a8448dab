"""``prune``: what no chain needs goes, and nothing else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from hotswap.stream import (
    Publisher,
    PullReport,
    SourceNotReady,
    StreamError,
    VersionMissing,
    prune,
    published_versions,
    pull,
)
from hotswap.stream.disk import LocalDisk
from hotswap.stream.layout import INDEX, directory_of
from tests.unit.stream.streams import Stream, contents_of, refusal_of
from tests.unit.stream.test_sources import at_read
from tests.unit.stream.trained import Trainer


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


@pytest.mark.parametrize("encoding", ["xor", "overwrite", "gap", "full"])
def test_a_pull_beside_a_prune_gives_the_target_or_leaves_what_was_there(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The versions that a reader is on its way over go while it reads, one or all of them."""
    acted, number = True, 0
    while acted:
        number += 1
        root, acts = tmp_path / str(number), list[int]()
        stream = Stream(root, encoding, encoding, "full", encoding, "full", encoding)
        pull(stream.local, stream.source, 1, base_dir=stream.base, threads=1)

        def go(stream: Stream = stream, acts: list[int] = acts) -> None:
            acts.append(1)
            prune(stream.source, keep=1)

        path = max(directory_of(stream.source, 2).glob("*.safetensors"))
        with monkeypatch.context() as patched:
            at_read(patched, path, number, go)
            error = refusal_of(partial(pull_to, stream, 2))
        at = 2 if error is None else 1
        assert contents_of(stream.local) == stream.at(at)
        if error is not None:
            assert isinstance(error, SourceNotReady | VersionMissing)
            assert error.local_version == 1
        acted = bool(acts)
        # The newest is still to be had, from the full version before it.
        pull_to(stream, 6)
        assert contents_of(stream.local) == stream.at(6)
    assert number > 4


def pull_to(stream: Stream, target: int) -> PullReport:
    return pull(stream.local, stream.source, target, base_dir=stream.base, threads=1)
