"""Every command: wrong usage and failures as text and as JSON, with the codes of the reference."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hotswap.cli import main
from hotswap.cli.codes import ExitCode
from hotswap.cli.commands import COMMANDS
from tests.markdown_blocks import ROOT

Capture = pytest.CaptureFixture[str]

# A port that nobody listens at.
NOBODY = ("--url", "http://127.0.0.1:9")

# A way in which each fails at once, and its code; none where there is no way.
FAILING: dict[str, tuple[tuple[str, ...], int] | None] = {
    "serve": (("--model", "EMPTY", "--port", "0"), 1),
    "demo": (("--model", "/nonexistent"), 1),
    "update": (("/b", *NOBODY, "--within-s", "0.2"), 3),
    "push": (("/nonexistent", *NOBODY), 1),
    "commit": ((*NOBODY, "--within-s", "0.2"), 3),
    "state": ((*NOBODY, "--wait", "0.2"), 3),
    "watch": ((*NOBODY, "--times", "1", "--every-s", "0.2"), 3),
    "publish": (("/nonexistent", "--to", "/nonexistent/to"), 1),
    "prune": (("/nonexistent", "--keep", "1"), 3),
    "plugins": None,
    "check": (("/nonexistent",), 1),
    "pull": (
        ("--source", "/nonexistent", "--local", "LOCAL", "--base", "/nonexistent", "--target", "1"),
        1,
    ),
    "materialize": (("/nonexistent",), 1),
    "inspect": (("/nonexistent",), 3),
    "verify": (("/nonexistent",), 3),
    "completion": None,
}
NAMES = [command.name for command in COMMANDS]


def ended(*words: str) -> int | str | None:
    try:
        return main(words)
    except SystemExit as error:
        return error.code


def placed(words: tuple[str, ...], tmp_path: Path) -> list[str]:
    places = {"EMPTY": tmp_path, "LOCAL": tmp_path / "local"}
    return [str(places.get(word, word)) for word in words]


@pytest.mark.parametrize("name", NAMES)
def test_wrong_usage(name: str, capsys: Capture) -> None:
    assert ended(name, "--no-such-flag") == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"hotswap {name}: " in shown.err
    assert ended(name, "--no-such-flag", "--json") == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.err == ""
    [line] = shown.out.splitlines()
    error = json.loads(line)["error"]
    assert (error["class"], error["exit_code"]) == ("UsageError", ExitCode.USAGE)


@pytest.mark.parametrize("name", NAMES)
def test_a_failure(name: str, tmp_path: Path, capsys: Capture) -> None:
    failing = FAILING[name]
    if failing is None:
        return  # it has nothing to fail at but its command line
    words, code = placed(failing[0], tmp_path), failing[1]
    assert ended(name, *words) == code
    shown = capsys.readouterr()
    lines = (shown.out if name == "watch" else shown.err).splitlines()
    assert "Traceback" not in shown.err
    assert any(line.startswith((f"hotswap {name}: ", "no answer: ")) for line in lines)
    assert name == "watch" or shown.out == ""
    assert ended(name, *words, "--json") == code
    [line] = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    if name == "watch":
        # An object for each thing that happens: this is what a look has found.
        assert told["trouble"] in lines[-1]
    else:
        assert told["error"]["exit_code"] == code
        assert set(told["error"]) >= {"class", "message", "weights", "retryable"}
        assert told["error"]["message"] in "; ".join(lines)


def test_every_code_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert set(map(int, re.findall(r"^\| (\d+) \|", page, re.MULTILINE))) == set(ExitCode)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_in_the_reference_with_its_json(name: str, capsys: Capture) -> None:
    assert ended(name, "--help") == 0
    assert "--json" in capsys.readouterr().out
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert f"\n## `hotswap {name}`" in page
