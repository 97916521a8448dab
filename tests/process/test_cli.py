"""The commands against real servers, as a person at the terminal runs them."""

from __future__ import annotations

import json
import os
import pty
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotswap.cli import main
from hotswap.client import Client
from hotswap.testing.server import ServerProcess
from tests.markdown_blocks import ROOT, blocks_of
from tests.process.forked_server import ForkedServer

pytestmark = pytest.mark.process

ADDRESS = "http://127.0.0.1:30000"
LIMIT_S = 60


@pytest.fixture(scope="module", params=["gr", "sglang"])
def server(request: pytest.FixtureRequest, a: Path) -> Iterator[ServerProcess]:
    """One server a dialect, of which one starts as a person starts it, and is traced."""
    flags = ("--dialect", request.param)
    start = ServerProcess if request.param == "gr" else ForkedServer
    with start(a, *flags, environ={"OMP_NUM_THREADS": "1"}) as process:
        yield process


@pytest.fixture(autouse=True)
def _address(monkeypatch: pytest.MonkeyPatch, server: ServerProcess) -> None:
    monkeypatch.setenv("HOTSWAP_URL", server.base_url)
    for name in ("HOTSWAP_API_KEY", "HOTSWAP_ADMIN_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def as_json(
    capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> dict[str, object]:
    """The object that a command prints with ``--json``."""
    assert main([*arguments, "--json"]) == code
    shown: dict[str, object] = json.loads(capsys.readouterr().out)
    return shown


def test_state_update_state(b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = as_json(capsys, "state", "--wait", "30")
    assert (seen["state"], seen["weights"]) == ("serving", "whole")
    done = as_json(capsys, "update", str(b), "--weight-version", "7", "--token-step", "2")
    assert (done["weight_version"], done["tensors"]) == ("7", 21)
    assert main(["state"]) == 0
    shown = capsys.readouterr().out
    assert f"model      {b}" in shown
    assert "step       2" in shown
    assert main(["update", str(b), "--fenced", "--no-flush-cache"]) == 0
    kept = "new weights are live, still labelled 7: 21 tensors, 0.5 MB, staged "
    assert capsys.readouterr().out.startswith(kept)


def test_an_update_of_a_server_that_stays_paused(
    server: ServerProcess, b: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(server.base_url) as client, client.paused("retract"):
        assert main(["update", str(b), "--weight-version", "held"]) == 6
        told = capsys.readouterr().out
        assert told.startswith("version held is loaded: 21 tensors, ")
        assert "; the server is still paused (retract): continue with curl -X POST " in told
        assert as_json(capsys, "push", str(b), code=6)["gate"] == "retract"
        command = shlex.split(told.partition("continue with ")[2])
        ran = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=True)
        assert json.loads(ran.stdout)["status"] == "ok"
        assert client.state().gate is None
    assert main(["push", str(b)]) == 0
    assert capsys.readouterr().out.startswith("new weights are live, still labelled held: ")


def test_an_update_that_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = as_json(capsys, "update", str(tmp_path / "none"), code=1)
    error = failed["error"]
    assert isinstance(error, dict)
    assert (error["class"], error["weights"]) == ("UpdateRejected", "untouched")
    assert main(["update", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("hotswap update: update of http://")


def test_watch_tells_of_updates_that_went_before(
    b: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_json(capsys, "update", str(b), "--weight-version", "watched")
    assert main(["watch", "--times", "3", "--every-s", "0.3"]) == 0
    shown = capsys.readouterr().out
    assert "serving  version watched" in shown
    assert f"committed: watched from {b}: staged " in shown
    assert main(["watch", "--times", "3", "--every-s", "0.3", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert any(line.get("state", {}).get("weight_version") == "watched" for line in lines)
    assert any(line.get("update", {}).get("version") == "watched" for line in lines)


@pytest.mark.parametrize(
    ("command", "wanted"),
    [(("watch", "--times", "2", "--every-s", "0.3"), b"last updates"), (("update",), b"are live")],
    ids=["watch", "update"],
)
def test_on_a_terminal(command: tuple[str, ...], wanted: bytes, b: Path) -> None:
    source = (str(b),) if command == ("update",) else ()
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hotswap", *command, *source],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(follower)
    shown = b""
    try:
        # The terminal's other end is an error once the process has closed it.
        while piece := os.read(leader, 65536):
            shown += piece
    except OSError:
        pass
    finally:
        os.close(leader)
        assert process.wait(LIMIT_S) == 0
    assert wanted in shown
    assert b"\x1b[" in shown


def test_a_reader_that_goes_away() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-m", "hotswap", "state", "--json"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (1, "")


def test_a_server_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTSWAP_URL", "http://127.0.0.1:9")
    assert main(["update", "/none", "--within-s", "0.2"]) == 3
    assert "not answered within 0.2 s" in capsys.readouterr().err
    assert main(["watch", "--times", "1", "--every-s", "0.1"]) == 3
    assert "no answer" in capsys.readouterr().out
    for command in (["state"], ["watch"], ["update", "/none"]):
        monkeypatch.setenv("HOTSWAP_URL", "server:30000")
        assert main(command) == 2
        assert "wanted one like http://" in capsys.readouterr().err


def test_an_update_by_a_strategy(b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = as_json(capsys, "update", str(b), "--strategy", "disk", "--weight-version", "by-disk")
    assert done["weight_version"] == "by-disk"
    assert main(["update", str(b), "--strategy", "rsync"]) == 1
    assert "pip install hotswap-rsync" in capsys.readouterr().err


def test_the_examples_of_the_clients_page(
    server: ServerProcess, b: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "reference" / "client.md"
    blocks = [block for block in blocks_of(page) if block.language == "python"]
    code = "\n".join(block.code for block in blocks).replace(ADDRESS, server.base_url)
    script = tmp_path / "examples.py"
    script.write_text(code.replace("/checkpoints/7", str(b)))
    names = runpy.run_path(str(script))
    assert len(blocks) == 3
    assert isinstance(names["client"], Client)
    assert "update {" in capsys.readouterr().out
