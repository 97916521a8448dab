"""Every value that a flag takes: what is none is wrong usage, and nothing is done."""

from __future__ import annotations

import json
import math
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest

from hotswap.cli import main
from hotswap.cli.codes import ExitCode
from hotswap.cli.commands import COMMANDS, Flag
from hotswap.cli.parser import parser_of
from hotswap.cli.values import OneOf, Seconds, Whole, not_empty, on_this_machine
from hotswap.stream import Publisher, StreamError
from tests.unit.stream.trained import first_state, write_base

NUMERIC = [
    pytest.param(command.name, flag, id=f"{command.name}{flag.name}")
    for command in COMMANDS
    for flag in command.flags
    if flag.metavar in ("N", "S")
]
NEVER = ("nan", "-nan", "-1", "-inf", "-0.5", "many", "", " ", "1e", "0x10", "1,5", "9" * 5000)
NO_WHOLE = ("inf", "1e10", "0.5", "1e400", "99999999999999999999999")
ZERO_IS_FINE = {"--token-step", "--anchor-every", "--aggregate-every", "--target"}
ZERO_IS_FINE |= {"--lock-timeout-s"}


def test_one_of_some_says_which_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    modes = OneOf(choices=("abort", "wait"))
    assert modes("wait") == "wait"
    for text, said in (
        ("abrot", "it is 'abrot', wanted one of abort, wait; did you mean abort[?]"),
        ("x" * 50, "it begins with 'x+', wanted one of abort, wait$"),
        (" ", "wanted a text that is not empty"),
    ):
        with pytest.raises(ArgumentTypeError, match=said):
            modes(text)
    for words in (
        ["update", "x", "--pause-mode", "abrot"],
        ["push", "x", "--transport", "boddy"],
        ["completion", "bsh"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == ExitCode.USAGE
        assert "did you mean " in capsys.readouterr().err


def wrong(flag: Flag) -> list[str]:
    """Texts that are no value of ``flag``."""
    texts = [text for text in NEVER if flag.metavar == "N" or text != "9" * 5000]
    texts += NO_WHOLE if flag.metavar == "N" else ()
    texts += [] if flag.name in ZERO_IS_FINE else ["0"]
    texts += ["inf", "1e400"] if flag.name == "--every-s" else ()
    return texts


@pytest.mark.parametrize(("command", "flag"), NUMERIC)
def test_what_is_no_number_of_a_flag(
    command: str, flag: Flag, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = parser_of(None)
    for text in wrong(flag):
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([command, f"{flag.name}={text}"])
        said = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == ExitCode.USAGE, text
        assert f"argument {flag.name}: it " in said
        assert ", wanted " in said
        assert len(said) < 250
    with pytest.raises(SystemExit):
        main([command, flag.name, "nan", "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["class"], error["exit_code"]) == ("UsageError", 2)


def test_there_are_such_flags_and_each_has_a_type_of_its_own() -> None:
    flags = [param.values[1] for param in NUMERIC]
    assert len(flags) >= 17
    assert all(isinstance(flag.type, Whole | Seconds) for flag in flags if isinstance(flag, Flag))
    others = [flag for command in COMMANDS for flag in command.flags if flag not in flags]
    assert {flag.type for flag in others} == {not_empty, on_this_machine}


TEXTS = [
    pytest.param(command.name, flag, id=f"{command.name}{flag.name}")
    for command in COMMANDS
    for flag in command.flags
    if flag.type in (not_empty, on_this_machine)
    and (flag.metavar is not None or not flag.name.startswith("--"))
]


@pytest.mark.parametrize(("command", "flag"), TEXTS)
def test_an_empty_text_is_no_directory_and_no_name(
    command: str, flag: Flag, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = parser_of(None)
    for text in ("", " "):
        words = [f"{flag.name}={text}"] if flag.name.startswith("--") else [text]
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([command, *words])
        assert ended.value.code == ExitCode.USAGE
        said = capsys.readouterr().err.splitlines()[-1]
        assert f"{flag.name}: it is {text!r}, wanted a text that is not empty" in said


def test_what_is_one() -> None:
    assert Whole(least=1)("12") == 12
    assert Whole(least=0)("0") == 0
    assert Seconds()("0.25") == 0.25
    assert Seconds()("inf") == math.inf
    assert Seconds(zero=True)("0") == 0
    assert Seconds(endless=False)("1e9") == 1e9


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (Whole(least=1), "0", "it is '0', wanted a whole number from 1"),
        (Whole(least=1, most=8), "9", "it is '9', wanted a whole number from 1 to 8"),
        (Whole(least=0), "-3", "it is '-3', wanted a whole number from 0"),
        (Seconds(), "nan", "it is 'nan', wanted seconds, more than 0; inf is for ever"),
        (Seconds(zero=True), "-1", "it is '-1', wanted seconds, 0 or more; inf is for ever"),
        (
            Seconds(endless=False),
            "inf",
            "it is 'inf', wanted seconds, more than 0, and not for ever",
        ),
        (Whole(least=0), "x" * 99, f"it begins with '{'x' * 40}', wanted a whole number from 0"),
    ],
)
def test_what_is_said_of_one_that_is_none(kind: Whole | Seconds, text: str, said: str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        kind(text)
    assert str(caught.value) == said


def test_a_publish_that_keeps_nothing_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step, source = write_base(tmp_path / "step", first_state()), tmp_path / "source"
    with pytest.raises(SystemExit):
        main(["publish", str(step), "--to", str(source), "--keep", "0"])
    wrong_counts: list[tuple[dict[str, Any], str]] = [
        ({"keep": 0}, "keep is 0, wanted 1 or more"),
        ({"threads": 0}, "threads is 0, wanted 1 or more"),
        ({"anchor_every": -1}, "anchor_every is -1, wanted 0 or more"),
        ({"aggregate_every": -1}, "aggregate_every is -1, wanted 0 or more"),
    ]
    for counts, said in wrong_counts:
        with pytest.raises(StreamError, match=said):
            Publisher(source, run="r", base_dir=step, **counts)
    assert not source.exists()


@pytest.mark.parametrize("link", [False, True])
def test_a_checkpoint_is_not_published_into_itself(
    link: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step, base = (write_base(tmp_path / name, first_state()) for name in ("step", "base"))
    before = sorted(step.rglob("*")), sorted(base.rglob("*"))
    there = {step: step, base: base}
    if link:
        for directory in there:
            there[directory] = tmp_path / f"{directory.name}-link"
            there[directory].symlink_to(directory)
    command = ["publish", str(step), "--base", str(base), "--to"]
    assert main([*command, f"{there[step]}/"]) == ExitCode.USAGE
    assert "is the checkpoint itself, wanted a directory of its own" in capsys.readouterr().err
    assert main([*command, str(there[base])]) == ExitCode.USAGE
    assert "is --base itself" in capsys.readouterr().err
    assert (sorted(step.rglob("*")), sorted(base.rglob("*"))) == before
