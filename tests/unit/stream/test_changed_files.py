"""Whole files of a local copy that are cut, gone or others: found, said, and made anew."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.cli import main
from hotswap.engine.loading import load_model
from hotswap.errors import UpdateRejected
from hotswap.pulls.told_damage import told_as_damage
from hotswap.sparse.cache import PATCHES
from hotswap.stream import Keep, LocalDamaged, PullMode, verify_local
from hotswap.stream.state import Reserved
from tests.tiers import mostly_long
from tests.unit.sparse.rig import Served, Trainer, checksums, state_of
from tests.unit.stream.test_condemned import ADVICE, KEEPS, Copy

Capture = pytest.CaptureFixture[str]
Change = Callable[[Path], None]


def weights_of(local: Path) -> Path:
    return sorted(local.glob("*.safetensors"))[-1]


def cut_weights(local: Path) -> None:
    os.truncate(weights_of(local), weights_of(local).stat().st_size - 1)


def no_weights(local: Path) -> None:
    weights_of(local).unlink()


def broken_config(local: Path) -> None:
    (local / "config.json").write_text("{")


def other_config(local: Path) -> None:
    """One that loads, and says something else."""
    path = local / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"initializer_range": 0.5}))


def no_config(local: Path) -> None:
    (local / "config.json").unlink()


CHANGES = (cut_weights, no_weights, broken_config, other_config, no_config)


@pytest.mark.parametrize("change", mostly_long(CHANGES, but=[cut_weights, broken_config]))
@pytest.mark.parametrize("keep", mostly_long(KEEPS, but=[Keep.LOG]))
def test_a_reader_refuses_it_and_the_next_pull_mends_it(
    tmp_path: Path, keep: Keep, change: Change, capsys: Capture
) -> None:
    copy = Copy(tmp_path, keep)
    change(copy.local)
    assert {fault.kind for fault in verify_local(copy.local).faults} == {"LocalDamaged"}
    capsys.readouterr()
    assert main(["verify", str(copy.local)]) == 1
    assert "wait until" not in capsys.readouterr().err
    with pytest.raises(LocalDamaged, match=ADVICE):
        load_model(copy.local)
    assert copy.reach(1).mode is PullMode.RESEED
    assert verify_local(copy.local).faults == ()
    load_model(copy.local)


@pytest.mark.parametrize("change", mostly_long(CHANGES, but=[cut_weights, broken_config]))
@pytest.mark.parametrize("keep", mostly_long(KEEPS, but=[Keep.LOG]))
def test_a_pull_that_checks_finds_it_first(tmp_path: Path, keep: Keep, change: Change) -> None:
    copy = Copy(tmp_path, keep)
    assert copy.reach(1, check=True).mode is PullMode.NOOP
    change(copy.local)
    assert copy.reach(1, check=True).mode is PullMode.RESEED
    assert verify_local(copy.local).faults == ()


@pytest.mark.parametrize(
    "change",
    mostly_long([cut_weights, no_weights, broken_config, no_config], but=[cut_weights]),
)
@pytest.mark.parametrize("keep", mostly_long(KEEPS, but=[Keep.LOG]))
async def test_an_update_does(tmp_path: Path, keep: Keep, change: Change) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path, keep=keep) as served:
        before = checksums(served.target)
        await served.pull(0)
        await served.pull(trainer.publish())
        PATCHES.clear()
        change(served.local)
        with pytest.raises(LocalDamaged, match=ADVICE) as told:
            await served.load(version=1)
        assert not told.value.retryable
        assert checksums(served.target) == before
        await served.pull(1)
        await served.load(version=1)
        served.assert_serves(trainer.states[-1])


@pytest.mark.parametrize("keep", mostly_long(KEEPS, but=[Keep.LOG]))
def test_a_state_of_before_says_nothing_of_small_files(tmp_path: Path, keep: Keep) -> None:
    copy = Copy(tmp_path, Keep.FILES)
    path = Reserved(copy.local).state
    said = json.loads(path.read_text())
    assert "config.json" in said.pop("small")
    path.write_text(json.dumps(said))
    Reserved(copy.local).own.unlink()
    copy.keep = keep
    other_config(copy.local)
    assert verify_local(copy.local).faults == ()
    load_model(copy.local)
    assert copy.reach(1, check=True).mode is PullMode.NOOP
    cut_weights(copy.local)
    with pytest.raises(LocalDamaged, match="its files are not what the last pull left"):
        load_model(copy.local)
    assert verify_local(copy.local).faults[0].kind == "LocalDamaged"


def test_what_is_not_damage_is_said_as_it_was(tmp_path: Path) -> None:
    copy = Copy(tmp_path, Keep.FILES)
    wrong = UpdateRejected("another fault")
    for place in (copy.local, copy.a, tmp_path / "nowhere"):
        with pytest.raises(UpdateRejected) as seen, told_as_damage(place, allowed=None):
            raise wrong
        assert seen.value is wrong
    no_config(copy.local)
    with pytest.raises(UpdateRejected) as seen, told_as_damage(copy.local, allowed=lambda _: False):
        raise wrong
    assert seen.value is wrong
