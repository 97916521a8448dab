"""Exit codes say what happened to the weights, and errors are JSON where asked for."""

from __future__ import annotations

import io
import json

import pytest

from hotswap import errors, stream
from hotswap.cli import main
from hotswap.cli.codes import ExitCode, exit_code_of
from hotswap.cli.output import console_of, fail
from hotswap.client import NoAnswer, NotReady, OutcomeUnknown, RequestRefused, StillPaused


def a_retryable(error: errors.HotswapError) -> errors.HotswapError:
    error.retryable = True
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UpdateRejected("x"), ExitCode.FAILED),
        (errors.UpdateRolledBack("x"), ExitCode.FAILED),
        (errors.InFlight("x"), ExitCode.FAILED),
        (RequestRefused("x", status=401), ExitCode.FAILED),
        (NoAnswer("x"), ExitCode.NO_ANSWER),
        (NotReady("x"), ExitCode.NO_ANSWER),
        (stream.SourceNotReady("x"), ExitCode.NO_ANSWER),
        (stream.LocalBusy("x"), ExitCode.NO_ANSWER),
        (stream.VersionMissing("x"), ExitCode.FAILED),
        (stream.DiskFull("x"), ExitCode.FAILED),
        (errors.UpdateFailed("x"), ExitCode.NOT_WHOLE),
        (OutcomeUnknown("x"), ExitCode.UNKNOWN),
        (StillPaused("x"), ExitCode.STILL_PAUSED),
        (ValueError("no address"), ExitCode.USAGE),
        (OSError("no room"), ExitCode.FAILED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_a_code_for_each(error: BaseException, code: ExitCode) -> None:
    assert exit_code_of(error) is code


@pytest.mark.parametrize("command", ["pull", "verify", "inspect", "materialize"])
def test_a_damaged_copy_is_what_a_pull_leaves(command: str) -> None:
    for error in (stream.LocalDamaged("x"), a_retryable(stream.LocalDamaged("x"))):
        assert exit_code_of(error, command) is ExitCode.NOT_WHOLE


@pytest.mark.parametrize("command", ["update", "push", "commit", "watch", None])
def test_a_damaged_copy_is_no_torn_server(command: str | None) -> None:
    assert exit_code_of(stream.LocalDamaged("x"), command) is ExitCode.FAILED


def test_a_server_that_stays_paused_after_a_rejected_update() -> None:
    error = errors.UpdateRejected("x")
    error.add_note("http://server is still paused")
    assert exit_code_of(error) is ExitCode.STILL_PAUSED


def test_an_error_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    error = errors.UpdateFailed("torn")
    error.add_note("http://server is still paused")
    assert fail("update", error, as_json=False) is ExitCode.NOT_WHOLE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "hotswap update: torn\nhotswap update: http://server is still paused\n"
    assert fail("update", error, as_json=True) is ExitCode.NOT_WHOLE
    assert json.loads(capsys.readouterr().out)["error"] == {
        "class": "UpdateFailed",
        "message": "torn; http://server is still paused",
        "weights": "not_whole",
        "retryable": False,
        "exit_code": 4,
    }


def test_an_error_of_a_pull_says_what_is_still_there(capsys: pytest.CaptureFixture[str]) -> None:
    error = stream.VersionMissing("version 2 is missing")
    error.local_version = 1
    assert fail("pull", error, as_json=True) is ExitCode.FAILED
    shown = json.loads(capsys.readouterr().out)["error"]
    assert (shown["class"], shown["local_version"], shown["weights"]) == (
        "VersionMissing",
        1,
        "untouched",
    )
    assert fail("pull", KeyboardInterrupt(), as_json=True) is ExitCode.INTERRUPTED
    assert "local_version" not in json.loads(capsys.readouterr().out)["error"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_something_live_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert console_of(io.StringIO()) is None
    assert console_of(Terminal()) is not None
    monkeypatch.setenv("TERM", "dumb")
    assert console_of(Terminal()) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("update", "--json"),
        ("state", "--jason", "--json"),
        ("verify", "--json", "/x", "--threads", "many"),
        ("sevre", "--json"),
    ],
)
def test_a_wrong_command_line_is_an_object_too(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.err == ""
    error = json.loads(captured.out)["error"]
    assert (error["class"], error["weights"], error["exit_code"]) == ("UsageError", "untouched", 2)
    assert error["message"].startswith("hotswap")
    assert error["message"].endswith("--help)")


def test_an_address_that_is_none_touches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", "--url", "server:30000", "--json"]) == ExitCode.USAGE
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["class"], error["weights"]) == ("ValueError", "untouched")
