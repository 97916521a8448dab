"""What a command says while nobody answers: on stderr, and not where a board says it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hotswap.cli import main


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that refuses connections, and that nobody else can take."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOTSWAP_API_KEY", "HOTSWAP_ADMIN_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "command", [("update", "/none", "--within-s", "3"), ("state", "--wait", "3")]
)
def test_a_command_says_at_once_that_nobody_answers(
    command: tuple[str, ...], nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--url", nobody]) == 3
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"hotswap {command[0]}: {nobody}/status: ConnectError: ")
    assert "; asking again, for up to " in first
    assert "was not answered within 3 s" in last


def test_watch_says_it_once() -> None:
    command = [sys.executable, "-m", "hotswap", "watch", "--times", "1"]
    ended = subprocess.run(
        [*command, "--url", "http://127.0.0.1:9"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (3, "")
    assert ended.stdout.count("no answer") == 1


def test_a_key_that_is_none_is_wrong_usage(
    nobody: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTSWAP_API_KEY", "s3cret and more")
    for command in (["state"], ["watch"], ["update", "/none"]):
        assert main([*command, "--url", nobody]) == 2
        said = capsys.readouterr().err
        assert "api_key: the key has a blank" in said
        assert "s3cret" not in said
