"""A file that may still be being written: class, ``retryable`` and advice say the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.errors import UpdateRejected
from hotswap.stream import BaseChanged, pull
from hotswap.testing import make_checkpoint
from hotswap.weights.checkpoint import Checkpoint
from hotswap.weights.incomplete import ADVICE
from tests.unit.stream.streams import PUBLISHED

SOURCE, BASE = PUBLISHED / "source", PUBLISHED / "base"


def cut(size: int) -> Callable[[Path], None]:
    """To ``size`` bytes; less than none are those that the end lacks."""

    def lack(directory: Path) -> None:
        file = directory / "model.safetensors"
        os.truncate(file, size if size >= 0 else file.stat().st_size + size)

    return lack


def a_shard_of_two(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.rename(directory / "model-00001-of-00002.safetensors")


@pytest.mark.parametrize(
    "lack", [cut(0), cut(5), cut(100), cut(-100), a_shard_of_two], ids=[*"abcd", "shard"]
)
def test_what_is_not_wholly_there_may_be_there_later(
    lack: Callable[[Path], None], tmp_path: Path
) -> None:
    make_checkpoint(tmp_path)
    lack(tmp_path)
    with pytest.raises(UpdateRejected) as caught, Checkpoint.open(tmp_path):
        pass
    assert caught.value.retryable
    assert str(caught.value).endswith(ADVICE)


def test_what_is_wrong_stays_wrong(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(UpdateRejected) as caught, Checkpoint.open(tmp_path):
        pass
    assert not caught.value.retryable
    assert "try again" not in str(caught.value)


@pytest.mark.parametrize("retryable", [True, False])
def test_a_base_is_no_exception(retryable: bool, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(BASE, base)
    file = next(base.glob("model-00001*.safetensors"))
    if retryable:
        os.truncate(file, 1000)
    else:
        file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(BaseChanged) as caught:
        pull(tmp_path / "local", SOURCE, 1, base_dir=base)
    assert caught.value.retryable is retryable
    assert ("wait until" in str(caught.value)) is retryable
    assert ("; or put back what" in str(caught.value)) is retryable
