"""The commands against servers that are none, and people who stop them."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from hotswap.cli import bars, main
from hotswap.cli.board import Board
from hotswap.cli.codes import ExitCode
from hotswap.cli.watch import screen
from hotswap.client import ServerEvent, UpdateInProgress
from hotswap.client.fields import Fields
from hotswap.client.shown import server_state
from tests.unit.answering import Answer, answering
from tests.unit.client.script import status

Capture = pytest.CaptureFixture[str]
ESCAPES = "\x1b[2J\x1b]0;title\x07\u2028\u202egpj\u2066\u200b\ufeff\U000e0041[/red]"
SHOWN = r"\x1b[2J\x1b]0;title\x07\u2028\u202egpj\u2066\u200b\ufeff\U000e0041[/red]"
TRUTH = json.loads(status().body)


pytestmark = pytest.mark.usefixtures("nothing_set")


def always(status_code: int, body: bytes = b"", **headers: str) -> Callable[[str], Answer]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: (status_code, named, body)


def lying(**lies: object) -> Callable[[str], Answer]:
    return always(200, json.dumps({**TRUTH, **lies}).encode())


ONE_LOOK = ["watch", "--times", "1", "--every-s", "60"]


def commands(checkpoint: Path, *, within_s: str = "60") -> list[list[str]]:
    return [
        ["state"],
        ["state", "--wait", within_s],
        ["update", "/b", "--within-s", within_s],
        ["push", str(checkpoint), "--within-s", within_s],
        ["watch", "--times", "1", "--every-s", within_s],
    ]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (always(401, b'{"error": {"message": "no", "code": "unauthorized"}}'), ExitCode.FAILED),
        (always(500, b"boom"), ExitCode.FAILED),
        (always(301, location="http://127.0.0.1:1/"), ExitCode.FAILED),
        (always(200, b"<html>Log in</html>"), ExitCode.FAILED),
        (always(404), ExitCode.FAILED),
        (always(502, b"<html>Bad gateway</html>"), ExitCode.NO_ANSWER),
        (always(200, b"not gzip", content_encoding="gzip"), ExitCode.NO_ANSWER),
    ],
    ids=["401", "500", "301", "page", "404", "502", "gzip"],
)
def test_the_code_of_what_answers_in_a_servers_place(
    answer: Callable[[str], Answer], code: ExitCode, checkpoint: Path, capsys: Capture
) -> None:
    with answering(answer) as url:
        every = commands(checkpoint)
        if code is ExitCode.NO_ANSWER:
            # They ask for as long as they may, and state for ten seconds.
            every = commands(checkpoint, within_s="1")[1:]
        for command in every:
            assert main([*command, "--url", url, "--json"]) == code, command
            shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            if command[0] == "watch":
                assert [line["trouble"] is None for line in shown] == [False]
            else:
                assert shown[-1]["error"]["exit_code"] == code
                assert shown[-1]["error"]["weights"] == "untouched"


def after_an_update(**lies: object) -> Callable[[str], Answer]:
    """The state is ``lies`` once an update is done."""
    done = list[bool]()

    def answer(path: str) -> Answer:
        if path.startswith(("/update", "/hotswap/v1/push")):
            done.append(True)
            return 200, {}, b'{"success": true, "weight_version": "7", "tensors_loaded": 21}'
        return lying(**lies)(path) if done else (200, {}, json.dumps(TRUTH).encode())

    return answer


@pytest.mark.parametrize(
    ("lies", "code", "said"),
    [
        ({"facts": {"gate": None, "weights": "whole"}}, 0, "version 7 is live: 21 tensors, 0.0 MB"),
        (
            {"facts": {"gate": "abort", "weights": "whole"}},
            6,
            "is loaded: 21 tensors, 0.0 MB; the server is still paused (abort): continue with ",
        ),
        (
            {"state": "sleeping", "facts": {"weights": "whole"}},
            6,
            "; the server still sleeps: wake",
        ),
        ({"facts": {"weights": "never_loaded"}}, 4, "; the weights are not whole yet, and nothing"),
        ({"updates": 3}, 0, "version 7 is live: 21 tensors, 0.0 MB"),
    ],
    ids=["live", "paused", "asleep", "in part", "untold"],
)
def test_nothing_is_said_to_be_live_that_is_not(
    lies: dict[str, object], code: int, said: str, checkpoint: Path, capsys: Capture
) -> None:
    for command in (["update", "/b"], ["push", str(checkpoint), "--transport", "body"]):
        with answering(after_an_update(**lies)) as url:
            assert main([*command, "--weight-version", "7", "--url", url]) == code
        told = capsys.readouterr().out
        assert said in told
        assert ("is live" in told) == (code == 0)
        with answering(after_an_update(**lies)) as url:
            assert main([*command, "--url", url, "--json"]) == code
        assert json.loads(capsys.readouterr().out)["tensors"] == 21


PART = {"covered": 5, "of": 272, "version": "q1"}


def pushed_in_part(gate: str | None) -> Callable[[str], Answer]:
    pushed = {"success": True, "weight_version": "q1", "tensors_loaded": 5, "coverage": PART}
    looks = lying(facts={"gate": gate, "weights": "whole"}, weights={"coverage": PART})

    def answer(path: str) -> Answer:
        is_push = path.startswith("/hotswap/v1/push")
        return (200, {}, json.dumps(pushed).encode()) if is_push else looks(path)

    return answer


@pytest.mark.parametrize("gate", [None, "retract"])
def test_a_part_says_what_it_has_left(gate: str | None, checkpoint: Path, capsys: Capture) -> None:
    part = ["push", str(checkpoint), "--scope", "partial", "--transport", "body"]
    with answering(pushed_in_part(gate)) as url:
        code = main([*part, "--weight-version", "q1", "--url", url])
        told = capsys.readouterr().out
        assert main([*part, "--url", url, "--json"]) == code == ExitCode.NOT_WHOLE
    left = "; 5 of 272 tensors are of version q1, 267 still those of before: push the rest"
    assert left in told
    assert f"version q1 is {'live' if gate is None else 'loaded'} in part: 5 tensors" in told
    assert ("; the server is still paused (retract)" in told) == (gate is not None)
    assert json.loads(capsys.readouterr().out)["coverage"] == PART


def test_state_shows_what_a_push_by_parts_has_left_and_an_open_session(capsys: Capture) -> None:
    session = {"update_id": "s1", "updates": 2, "tensors": 1, "bytes": 3_000_000, "idle_ms": 1500.0}
    with answering(lying(weights={"coverage": PART}, session=session)) as url:
        assert main(["state", "--url", url]) == ExitCode.DONE
        shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert main(["state", "--url", url, "--json"]) == ExitCode.DONE
    seen = json.loads(capsys.readouterr().out)
    left = "5 of 272 tensors are of version q1, 267 still those of before: push the rest"
    assert shown["coverage"] == left
    held = "s1: 2 chunks, 1 tensor, 3.0 MB, idle for 1.5 s: commit it or abort it"
    assert shown["session"] == held
    assert seen["coverage"] == PART
    assert (seen["session"]["update_id"], seen["session"]["chunks"]) == ("s1", 2)


def test_the_way_to_continue_names_the_key(
    checkpoint: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTSWAP_ADMIN_API_KEY", "k3y-of-admin")
    with answering(after_an_update(facts={"gate": "abort", "weights": "whole"})) as url:
        assert main(["update", "/b", "--url", url]) == ExitCode.STILL_PAUSED
    header = '-H "Authorization: Bearer $HOTSWAP_ADMIN_API_KEY"'
    assert capsys.readouterr().out.endswith(f"curl -X POST {header} {url}/continue_generation\n")


def test_a_key_that_is_echoed_is_not_shown(
    checkpoint: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTSWAP_API_KEY", "k3y-of-api")
    monkeypatch.setenv("HOTSWAP_ADMIN_API_KEY", "k3y-of-admin")
    echo = "k3y-of-api k3y-of-admin"
    for answer in (
        lying(state=echo, model_path=echo, reasons=[echo], ready=False),
        always(400, json.dumps({"message": echo}).encode()),
        always(500, echo.encode()),
    ):
        with answering(answer) as url:
            for command in (["state"], ONE_LOOK, ["update", "/b"], ["push", str(checkpoint)]):
                main([*command, "--url", url])
                told = capsys.readouterr()
                assert told.out + told.err
                assert "k3y-of-" not in told.out + told.err


def test_a_refused_key_names_its_variable(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(always(401, b'{"error": {"message": "no", "code": "unauthorized"}}')) as url:
        for command in (["state"], ["update", "/b"], ONE_LOOK):
            assert main([*command, "--url", url]) == ExitCode.FAILED
            told = capsys.readouterr()
            assert "no key was sent: " in told.out + told.err
            assert "HOTSWAP_API_KEY, HOTSWAP_ADMIN_API_KEY" in told.out + told.err
        monkeypatch.setenv("HOTSWAP_API_KEY", "k3y-of-api")
        assert main(["state", "--url", url]) == ExitCode.FAILED
        assert "that was sent (at the terminal HOTSWAP_API_KEY)" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["state"], ONE_LOOK])
def test_a_reply_of_other_types_is_an_error_that_says_so(
    command: list[str], capsys: Capture
) -> None:
    with answering(lying(updates=[{"phase": 3}])) as url:
        assert main([*command, "--url", url]) == ExitCode.FAILED
    shown = capsys.readouterr()
    assert "/status: the server answered with updates[0].phase 3, wanted a text there" in (
        shown.out + shown.err
    )


def test_what_clients_choose_moves_no_cursor(capsys: Capture) -> None:
    weights = {**TRUTH["weights"], "weight_version": ESCAPES}
    answer = lying(weights=weights, state=ESCAPES, reasons=[ESCAPES], ready=False)
    with answering(answer) as url:
        for command in (["state"], ONE_LOOK):
            assert main([*command, "--url", url]) == ExitCode.DONE
            shown = capsys.readouterr().out
            assert SHOWN in shown
            assert {letter for letter in shown if not letter.isprintable()} == {"\n"}
        assert main(["state", "--url", url, "--json"]) == ExitCode.DONE
        assert json.loads(capsys.readouterr().out)["weight_version"] == ESCAPES
    with answering(always(400, json.dumps({"message": ESCAPES}).encode())) as url:
        assert main(["state", "--url", url]) == ExitCode.FAILED
    said = capsys.readouterr().err
    assert r"\x1b[2J" in said
    assert "\x1b" not in said


def test_a_live_view_takes_nothing_for_markup() -> None:
    board = Board()
    board.miss(ESCAPES)
    console = Console(width=240)
    with console.capture() as captured:
        console.print(screen(board))
    assert SHOWN in captured.get()
    weights = {"weight_version": ESCAPES}
    board.see(server_state(Fields({**TRUTH, "weights": weights}, at="x")))
    tells = {"phase": "committed", "weight_version": ESCAPES, "source": ESCAPES}
    board.hear(ServerEvent(id="1", name="update", tells=tells))
    board.miss(ESCAPES)
    with console.capture() as captured:
        console.print(screen(board))
    assert captured.get().count(SHOWN) == 4
    assert "\x1b" not in captured.get()


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_takes_a_phase_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with bars.bars(shown=True) as told:
        assert told is not None
        told.tell(UpdateInProgress(source="/b", version=None, phase="[/red]\x1b[2J", bytes_done=1))
    assert r"[/red]\x1b[2J" in terminal.getvalue()


def test_a_push_shows_how_far_it_is(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    pushed, looked = threading.Event(), threading.Event()
    runs: dict[str, object] = {"source": "a push of 21 tensors", "phase": "staging"}
    runs |= {"bytes_done": 1_000_000, "bytes_total": 2_000_000}

    def answer(path: str) -> Answer:
        if path.startswith("/hotswap/v1/push"):
            pushed.set()
            assert looked.wait(60)
            return 200, {}, b'{"success": true, "weight_version": "7", "tensors_loaded": 21}'
        if pushed.is_set():
            # A look before this one has been shown.
            if "1.0/2.0 MB" in terminal.getvalue():
                looked.set()
            return 200, {}, json.dumps({**TRUTH, "updates": [runs]}).encode()
        return 200, {}, json.dumps(TRUTH).encode()

    with answering(answer) as url:
        command = ["push", str(checkpoint), "--transport", "body", "--url", url]
        assert main(command) == ExitCode.DONE
    assert capsys.readouterr().out.startswith("new weights are live, still labelled 7: 21 tensors")
    assert "waiting for the server" in terminal.getvalue()
    assert "staging" in terminal.getvalue()
    assert "1.0/2.0 MB" in terminal.getvalue()


# --- somebody stops it


class Interrupted:
    """Stands at the keyboard: Ctrl-C while the first request since the last one waits."""

    def __init__(self) -> None:
        self.is_due = True

    def __call__(self, path: str) -> Answer:
        main_thread = threading.main_thread().ident
        if self.is_due and main_thread is not None:
            # A second one would end an event loop in the middle of its work.
            self.is_due = False
            signal.pthread_kill(main_thread, signal.SIGINT)
        return 200, {}, status(updates=[]).body


def test_ctrl_c_is_told_in_one_line(checkpoint: Path, capsys: Capture) -> None:
    somebody = Interrupted()
    with answering(somebody) as url:
        for command in commands(checkpoint)[:-1]:
            somebody.is_due = True
            assert main([*command, "--url", url, "--json"]) == ExitCode.INTERRUPTED
            shown = capsys.readouterr()
            assert json.loads(shown.out)["error"]["class"] == "KeyboardInterrupt"
            assert shown.err == ""
            somebody.is_due = True
            assert main([*command, "--url", url]) == ExitCode.INTERRUPTED
            assert capsys.readouterr().err == f"hotswap {command[0]}: stopped by Ctrl-C\n"
        somebody.is_due = True
        assert main(["watch", "--url", url, "--json"]) == ExitCode.DONE


@pytest.mark.parametrize("url", ["http://[::1", "http://a:99999", "http://", "server:30000"])
@pytest.mark.parametrize("command", [["state"], ["watch"], ["update", "/b"], ["push", "/b"]])
def test_addresses_that_are_none(url: str, command: list[str], capsys: Capture) -> None:
    assert main([*command, "--url", url]) == ExitCode.USAGE
    assert "wanted one like http://127.0.0.1:30000" in capsys.readouterr().err
    assert main([*command, "--url", url, "--json"]) == ExitCode.USAGE
    assert json.loads(capsys.readouterr().out)["error"]["weights"] == "untouched"
