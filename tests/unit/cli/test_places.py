"""A directory that is missing, a file, a checkpoint and a URL, wherever a command wants another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotswap.cli import main
from hotswap.cli.codes import ExitCode
from hotswap.testing import make_checkpoint
from tests.unit.stream.streams import PUBLISHED

Capture = pytest.CaptureFixture[str]
SOURCE, BASE = PUBLISHED / "source", PUBLISHED / "base"


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "plain").mkdir()
    make_checkpoint(tmp_path / "plain")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    return {name: str(tmp_path / name) for name in ("plain", "file", "empty", "nosuch", "local")}


def told(capsys: Capture, *command: str, code: int) -> str:
    """What a command says, the same for people and for programs."""
    assert main([*command, "--json"]) == code
    shown = capsys.readouterr()
    assert shown.err == ""
    message: str = json.loads(shown.out)["error"]["message"]
    assert main([*command]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"hotswap {command[0]}: {message}\n"
    return message


@pytest.mark.parametrize("command", [("check",), ("push",), ("publish", "--to", "/nonexistent/x")])
@pytest.mark.parametrize("place", ["nosuch", "file"])
def test_what_is_read_here_is_not_said_to_be_elsewhere(
    command: tuple[str, ...], place: str, places: dict[str, str], capsys: Capture
) -> None:
    said = told(capsys, command[0], places[place], *command[1:], code=1)
    assert "is not a checkpoint directory that can be opened here (" in said
    assert said.endswith("; look at the path")
    assert "server" not in said


@pytest.mark.parametrize("command", [("prune", "--keep", "1"), ("inspect",), ("verify",)])
def test_what_is_no_source_is_told_apart(
    command: tuple[str, ...], places: dict[str, str], capsys: Capture
) -> None:
    def said(place: str, code: int) -> str:
        return told(capsys, command[0], places[place], *command[1:], code=code)

    assert said("file", 1).endswith("/file is a file, wanted a directory of published versions")
    assert "/plain is a checkpoint and has no published version" in said("plain", 1)
    missing = said("nosuch", 3)
    assert "cannot be listed (No such file or directory); wanted a directory of" in missing
    assert "pull" not in missing


def test_a_local_checkpoint_is_not_pruned(places: dict[str, str], capsys: Capture) -> None:
    pull = ["pull", "--source", str(SOURCE), "--local", places["local"], "--base", str(BASE)]
    assert main([*pull, "--target", "1"]) == 0
    capsys.readouterr()
    said = told(capsys, "prune", places["local"], "--keep", "1", code=1)
    assert "is a local checkpoint, which versions are pulled into" in said


def test_a_pull_tells_what_will_never_be_a_source(places: dict[str, str], capsys: Capture) -> None:
    def said(source: str, code: int) -> str:
        rest = ("--local", places["local"], "--base", str(BASE), "--target", "1")
        return told(capsys, "pull", "--source", places[source], *rest, code=code)

    assert "/plain is a checkpoint and has no published version" in said("plain", 1)
    assert "look at the path, and pull again once it is there" in said("nosuch", 3)
    assert "version 1 is not there (yet); pull again once it is published" in said("empty", 3)


def test_an_empty_directory_may_become_a_source(places: dict[str, str], capsys: Capture) -> None:
    assert main(["prune", places["empty"], "--keep", "1"]) == 0
    assert capsys.readouterr().out == f"{places['empty']}: removed no version; no version stays\n"


def test_nothing_is_published_into_a_file(places: dict[str, str], capsys: Capture) -> None:
    said = told(capsys, "publish", places["plain"], "--to", places["file"], code=2)
    assert said.endswith("/file is a file, wanted a directory for what is published")


@pytest.mark.parametrize(
    "command",
    [
        ("pull", "--source", "s3://a/b", "--local", "URL", "--base", "/b", "--target", "1"),
        ("pull", "--source", "s3://a/b", "--local", "/l", "--base", "URL", "--target", "1"),
        ("materialize", "URL"),
        ("check", "URL"),
        ("check", "/c", "--model", "URL"),
        ("push", "URL"),
        ("publish", "URL", "--to", "s3://a/b"),
        ("publish", "/c", "--to", "s3://a/b", "--base", "URL"),
        ("verify", "s3://a/b", "--base", "URL"),
        ("inspect", "s3://a/b", "--base", "URL"),
        ("demo", "--model", "URL"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("url", ["s3://bucket/x", "https://host/x"])
def test_a_url_is_no_directory_of_this_machine(
    command: tuple[str, ...],
    url: str,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [url if word == "URL" else word for word in command]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    assert ended.value.code == ExitCode.USAGE
    message = json.loads(capsys.readouterr().out)["error"]["message"]
    assert "it is a URL, wanted a directory on this machine" in message
    assert list(tmp_path.iterdir()) == []


def test_a_stream_without_its_base_names_the_flag(capsys: Capture) -> None:
    assert main(["verify", str(SOURCE)]) == ExitCode.FAILED
    told = "builds on the base, which was not given: give it, by --base (in Python base_dir)"
    assert told in capsys.readouterr().err


def test_no_line_ends_in_a_comma(places: dict[str, str], capsys: Capture) -> None:
    pull = ["pull", "--source", str(SOURCE), "--local", places["local"], "--base", str(BASE)]
    for command in (
        [*pull, "--target", "2"],
        [*pull, "--target", "2"],
        ["materialize", places["local"]],
    ):
        assert main(command) == 0
        [line] = capsys.readouterr().out.splitlines()
        assert line.rstrip(", ") == line
