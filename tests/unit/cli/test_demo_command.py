"""``hotswap demo``: in a source tree, and in an install without one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import hotswap
from hotswap.cli import demo, main


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """hotswap as a wheel installs it, and a current directory with nothing in it."""
    site = tmp_path / "site-packages"
    (site / "hotswap").mkdir(parents=True)
    monkeypatch.setattr(hotswap, "__file__", str(site / "hotswap" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def program(root: Path, code: str) -> None:
    folder = root / "contrib" / "demo"
    folder.mkdir(parents=True)
    (folder / "__main__.py").write_text(code)


def test_an_install_without_the_source_says_what_to_do(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("hotswap demo: no contrib/demo/__main__.py")
    assert "make demo" in said
    assert "hotswap serve --model A" in said
    assert main(["demo", "--json"]) == 1
    assert "source tree" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_what_is_not_installed_is_named(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(elsewhere, "")
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "gguf" else sys)
    assert main(["demo"]) == 1
    assert "gguf not installed" in capsys.readouterr().err


@pytest.mark.parametrize("held", [True, False])
def test_the_demo_of_the_source_is_run(
    held: bool, elsewhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = f"import sys\nprint('ran', sys.argv[1:])\nsys.exit({int(not held)})\n"
    program(elsewhere, code)
    model = elsewhere / "model"
    model.mkdir()
    assert main(["demo", "--model", "model"]) == int(not held)
    assert f"ran ['--model', '{model}']" in capfd.readouterr().out
    assert main(["demo", "--json"]) == int(not held)
    shown = capfd.readouterr()
    assert json.loads(shown.out)["held"] is held
    assert "ran []" in shown.err
