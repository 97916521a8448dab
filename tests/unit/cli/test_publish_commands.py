"""``hotswap publish`` and ``hotswap prune``."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from hotswap.cli import main
from hotswap.cli.codes import ExitCode
from hotswap.stream import directory_of, pull
from tests.unit.stream.streams import contents_of
from tests.unit.stream.trained import after_step, bytes_in, first_state, write_base

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def checkpoints(tmp_path: Path) -> list[Path]:
    """A base and three checkpoints after it."""
    state = first_state()
    found = [write_base(tmp_path / "base", state)]
    for step in (1, 2, 3):
        state = after_step(state, step)
        found.append(write_base(tmp_path / f"step-{step}", state))
    return found


def test_checkpoints_become_versions(
    checkpoints: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    base, *steps = checkpoints
    source = tmp_path / "source"
    rest = ["--to", str(source), "--base", str(base), "--anchor-every", "2"]
    assert main(["publish", str(steps[0]), *rest]) == ExitCode.DONE
    assert capsys.readouterr().out.startswith(f"{source}: version 1 (")
    for step in steps[1:]:
        assert main(["publish", str(step), *rest, "--json"]) == ExitCode.DONE
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["version"], one["full"]) for one in shown] == [(2, True), (3, False)]
    assert shown[1]["directory"] == str(directory_of(source, 3))
    pull(tmp_path / "local", source, 3, base_dir=base)
    assert contents_of(tmp_path / "local") == contents_of(steps[-1])
    assert contents_of(steps[0]) == bytes_in(after_step(first_state(), 1))

    assert main(["prune", str(source), "--keep", "1", "--dry-run"]) == ExitCode.DONE
    said = capsys.readouterr().out
    assert said == f"{source}: would remove 1 version (1 to 1); 2 versions (2 to 3) would stay\n"
    assert main(["prune", str(source), "--keep", "1", "--json"]) == ExitCode.DONE
    pruned = json.loads(capsys.readouterr().out)
    assert pruned == {"removed": [1], "kept": [2, 3], "dry_run": False}
    assert main(["prune", str(source), "--keep", "1"]) == ExitCode.DONE
    assert "removed no version; 2 versions (2 to 3) stay" in capsys.readouterr().out


def test_what_is_refused_says_why(
    checkpoints: list[Path], tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    step = checkpoints[1]
    source = tmp_path / "source"
    assert main(["publish", str(step), "--to", str(source), "--run", "a"]) == ExitCode.DONE
    capsys.readouterr()
    assert main(["publish", str(step), "--to", str(source), "--run", "b"]) == ExitCode.FAILED
    assert "hotswap publish: " in (said := capsys.readouterr().err)
    assert "is the stream of the run 'a', up to version 1" in said
    command = ["publish", str(tmp_path / "nowhere"), "--to", str(source), "--json"]
    assert main(command) == ExitCode.FAILED
    assert "nowhere" in json.loads(capsys.readouterr().out)["error"]["message"]
    command = ["publish", str(step), "--to", str(tmp_path / "new"), "--aggregate-every", "2"]
    assert main(command) == ExitCode.FAILED
    assert "give base_dir (--base of hotswap publish)" in capsys.readouterr().err
    assert main(["prune", str(tmp_path / "nowhere"), "--keep", "1", "--json"]) == ExitCode.NO_ANSWER
    assert json.loads(capsys.readouterr().out)["error"]["class"] == "SourceNotReady"
