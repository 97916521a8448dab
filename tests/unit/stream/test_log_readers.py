"""Who reads a directory gets what it holds, its log included, or is told to materialize it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from contrib.bench.plain_reader import apply_version
from hotswap.cli import main
from hotswap.engine.loading import load_model
from hotswap.pulls.logged import held_checkpoint
from hotswap.stream import (
    BaseChanged,
    Keep,
    LocalBusy,
    LocalDamaged,
    PullMode,
    PullPending,
    StreamError,
    directory_of,
    materialize,
    publish_delta,
    pull,
    survey_local,
)
from hotswap.stream.lock import exclusive
from hotswap.stream.log import file_of
from hotswap.stream.recorded import RecordedBase
from hotswap.stream.state import Reserved
from hotswap.stream.stored import StoredTensors
from hotswap.testing.checkpoints import make_checkpoint
from tests.unit.stream.streams import Stream, contents_of, held_contents

Capture = pytest.CaptureFixture[str]


class Models:
    """Two checkpoints of one model; ``local`` has the files of ``a``, and ``b`` in its log."""

    def __init__(self, root: Path) -> None:
        self.a = make_checkpoint(root / "a", seed=1)
        self.b = make_checkpoint(root / "b", seed=2)
        self.source, self.local = root / "source", root / "local"
        old, new = contents_of(self.a), contents_of(self.b)
        changes = [
            (name, np.frombuffer(old[name], np.uint8), np.frombuffer(new[name], np.uint8))
            for name in old
        ]
        publish_delta(self.source, 1, [changes], encoding="gap")
        self.pull(0)
        self.pull(1)
        assert contents_of(self.local) == old != new

    def pull(self, target: int) -> None:
        pull(self.local, self.source, target, base_dir=self.a, threads=1, keep=Keep.LOG)


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path)


def test_a_model_is_loaded_through_the_log(models: Models) -> None:
    loaded, expected = (load_model(d).model.state_dict() for d in (models.local, models.b))
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_no_pull_comes_in_between(models: Models) -> None:
    with (
        held_checkpoint(models.local),
        pytest.raises(LocalBusy),
        exclusive(models.local, timeout_s=0),
    ):
        raise AssertionError("a pull could write")
    Reserved(models.local).journal.write_bytes(b"")
    with pytest.raises(PullPending, match="cut short"), held_checkpoint(models.local):
        raise AssertionError("the files are of two versions")


def test_a_check_looks_at_the_log(models: Models, capsys: Capture) -> None:
    local, model = str(models.local), ["--model", str(models.a)]
    assert main(["check", local, *model]) == 0
    assert "loadable" in capsys.readouterr().out
    # No server starts on it: what it serves would not be what pulls begin with.
    for words in ([local], [str(models.b), "--model", local]):
        assert main(["check", *words]) == 1
        assert f"wanted plain files: hotswap materialize {local}" in capsys.readouterr().err
    os.truncate(Reserved(models.local).log / file_of(1), 40)
    assert main(["check", local, *model]) == 1
    assert "is not the log that the last pull left" in capsys.readouterr().err


def test_what_reads_files_alone_refuses_them(
    models: Models, tmp_path: Path, capsys: Capture
) -> None:
    wanted = f"wanted plain files: hotswap materialize {models.local}"
    with pytest.raises(StreamError, match=wanted), StoredTensors.at(models.local):
        raise AssertionError("its files are not what it holds")
    with pytest.raises(BaseChanged, match=wanted):
        pull(tmp_path / "other", models.source, 1, base_dir=models.local)
    assert wanted in str(RecordedBase.of(models.local).trouble)
    published = ["publish", str(models.local), "--to", str(tmp_path / "published")]
    assert main(published) == 1
    assert wanted in capsys.readouterr().err
    assert not (tmp_path / "published").exists()
    materialize(models.local, threads=1)
    assert main(published) == 0
    pull(tmp_path / "other", models.source, 0, base_dir=models.local, threads=1)
    assert contents_of(tmp_path / "other") == contents_of(models.b)


def test_a_damaged_log_loads_nothing(models: Models) -> None:
    file = Reserved(models.local).log / file_of(1)
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(LocalDamaged, match="is not the log"):
        load_model(models.local)


def test_another_puller_goes_on_from_the_files_and_ends_the_log(tmp_path: Path) -> None:
    """One that knows of no log, and changes files in place by what ``state.json`` says."""
    stream = Stream(tmp_path, "xor", "xor", "gap")
    for target, keep in ((0, Keep.FILES), (1, Keep.FILES), (2, Keep.LOG)):
        pull(stream.local, stream.source, target, base_dir=stream.base, threads=1, keep=keep)
    state = json.loads(Reserved(stream.local).state.read_text())
    assert state["version"] == "000001"
    apply_version(stream.local, directory_of(stream.source, 2), threads=1)
    assert contents_of(stream.local) == held_contents(stream.local) == stream.at(2)
    assert survey_local(stream.local).version is None
    with StoredTensors.at(stream.local) as plain:
        assert len(plain.tensors) == len(stream.at(2))
    report = pull(stream.local, stream.source, 3, base_dir=stream.base, keep=Keep.LOG)
    assert report.mode is PullMode.RESEED
    assert held_contents(stream.local) == stream.at(3)
