"""``hotswap check`` says what an update would say, from headers alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hotswap.cli import main
from hotswap.engine.loadable import check_checkpoint
from hotswap.errors import UpdateRejected
from hotswap.testing.checkpoints import make_checkpoint
from tests.unit.stream.streams import PUBLISHED


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "a", seed=1)


def test_a_checkpoint_that_can_be_served(a: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(a)]) == 0
    shown = capsys.readouterr().out
    assert shown == f"{a}: loadable: LlamaForCausalLM, float32, 21 tensors, 0.5 MB\n"
    assert main(["check", str(a), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["loadable"], found["tensors"], found["ignored"]) == (True, 21, [])


def test_one_that_fits_another_model_only(
    a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_checkpoint(tmp_path / "other", hidden_size=32)
    assert main(["check", str(other)]) == 0
    assert main(["check", str(other), "--model", str(a)]) == 1
    assert "hidden_size is 32, wanted 64" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["no directory", "no weights", "short shard", "no config"])
def test_why_not(fault: str, a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad"
    if fault != "no directory":
        shutil.copytree(a, bad)
        weights = bad / "model.safetensors"
        if fault == "no weights":
            weights.unlink()
        if fault == "short shard":
            weights.write_bytes(weights.read_bytes()[:-8])
        if fault == "no config":
            (bad / "config.json").unlink()
    assert main(["check", str(bad), "--model", str(a), "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["class"], error["weights"], error["exit_code"]) == (
        "UpdateRejected",
        "untouched",
        1,
    )
    assert error["message"]


def test_a_model_that_cannot_be_served_is_named(a: Path, tmp_path: Path) -> None:
    config = json.loads((a / "config.json").read_text())
    odd = tmp_path / "odd"
    shutil.copytree(a, odd)
    (odd / "config.json").write_text(json.dumps(config | {"architectures": ["OddForCausalLM"]}))
    for directory, model in ((odd, None), (a, odd), (a, tmp_path / "none")):
        with pytest.raises(UpdateRejected, match="cannot be served by hotswap's own engine"):
            check_checkpoint(directory, model=model)


def test_no_weights_are_read(a: Path) -> None:
    """Bytes that are noise are loadable: only headers are looked at."""
    weights = a / "model.safetensors"
    whole = weights.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    weights.write_bytes(whole[:header] + b"\xff" * (len(whole) - header))
    assert check_checkpoint(a).tensors == 21


@pytest.mark.parametrize(
    ("directory", "said"),
    [
        ("source", "is no checkpoint but a source of published versions, up to 8: hotswap inspect"),
        ("source/weight_v000001", "is no checkpoint but one delta of a stream: hotswap pull"),
    ],
)
def test_what_belongs_to_a_stream_is_told_apart(
    directory: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(PUBLISHED / directory)]) == 1
    assert said in capsys.readouterr().err


def test_a_local_checkpoint_without_a_model_is_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".weight_sync").mkdir()
    assert main(["check", str(tmp_path)]) == 1
    assert "hotswap inspect says what it holds" in capsys.readouterr().err
