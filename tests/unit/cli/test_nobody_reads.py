"""The commands where nobody takes what they print, and names that are no text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.cli import main
from hotswap.cli.codes import ExitCode
from tests.unit.answering import answering
from tests.unit.cli.test_odd_servers import Capture, lying
from tests.unit.stream.streams import PUBLISHED

pytestmark = pytest.mark.usefixtures("nothing_set")


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def broken() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def closed() -> int:
    return -1


def into(
    stdout: Callable[[], int], command: list[str], monkeypatch: pytest.MonkeyPatch
) -> int | str | None:
    if stdout is closed:
        with monkeypatch.context() as changed:
            changed.setattr("sys.stdout", None)  # as Python has it then
            return main(command)
    with open(stdout(), "w", encoding="utf-8") as nowhere, monkeypatch.context() as changed:
        changed.setattr("sys.stdout", nowhere)
        return main(command)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("stdout", [full, broken, closed])
def test_a_stdout_that_takes_nothing(
    stdout: Callable[[], int],
    as_json: bool,
    checkpoint: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = ["--json"] if as_json else []
    with answering(lying()) as url:
        for command in (
            ["check", str(checkpoint)],
            ["plugins"],
            ["completion", "bash"],
            ["inspect", str(PUBLISHED / "source"), "--no-density"],
            ["state", "--url", url],
            ["watch", "--url", url, "--every-s", "60"],
        ):
            assert into(stdout, [*command, *flags], monkeypatch) == ExitCode.FAILED
            said = capsys.readouterr().err
            if stdout is broken:
                assert said == ""
            else:
                assert said.startswith(f"hotswap {command[0]}: done, but its result cannot be ")
                assert ("it is closed" if stdout is closed else "No space left on device") in said
                assert said.count("\n") == 1


def test_names_that_are_no_text(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    shutil.copytree(checkpoint, directory)
    reading, writing = os.pipe()
    assert into(lambda: writing, ["check", directory], monkeypatch) == ExitCode.DONE
    with open(reading, "rb") as said:
        assert rb"/\udcff: " in said.read()
