import subprocess
import sys

import pytest

from hotswap.cli import main
from hotswap.command_line import is_key_flag, masked

SECRET = "s\u00e9cret"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], []),
        (["serve", "--api-keys", "x"], ["serve", "--api-keys", "x"]),
        (["--api-key", "abc", "--port", "1"], ["--api-key", "***", "--port", "1"]),
        (["--admin-api-key=abc", "x"], ["--admin-api-key=***", "x"]),
        (["--api-key", "--api-key", "x"], ["--api-key", "*********", "x"]),
        (["--api-key=", "--api-key"], ["--api-key=", "--api-key"]),
        (["--api-key", "a", "--api-key", SECRET], ["--api-key", "*", "--api-key", "*******"]),
    ],
)
def test_masked(words: list[str], shown: list[str]) -> None:
    assert masked(words) == shown


def test_key_flags() -> None:
    assert all(map(is_key_flag, ("--api-key", "--api-key=x", "--admin-api-key=")))
    assert not any(map(is_key_flag, ("--api", "--api-keys", "api-key", "--port=--api-key")))


def test_a_process_hides_its_own_keys() -> None:
    code = (
        "import sys; from hotswap.command_line import hide_keys; hide_keys(); hide_keys()\n"
        "print(ascii(open('/proc/self/cmdline').read().split('\\0')[3:]))\n"
        "print(sys.argv[1:], sys.orig_argv[3:])"
    )
    words = ["--api-key", SECRET, "x", f"--admin-api-key={SECRET}", "y"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    kernels, argv = ended.stdout.splitlines()
    hidden = ["--api-key", "*******", "x", "--admin-api-key=*******", "y"]
    assert kernels == ascii([*hidden, ""])
    assert argv == f"{hidden} {hidden}"


def test_a_key_that_stays_readable_stops_the_start(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import pathlib, sys; from hotswap import cli, command_line\n"
        "command_line._PROC = pathlib.Path('/nonexistent')\n"
        "sys.exit(cli.main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "serve", "--api-key", SECRET],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "HOTSWAP_API_KEY" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert SECRET not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", SECRET, "serve"],
        [f"--api-key={SECRET}", "serve", "--model", "."],
        ["plugins", "--api-key", SECRET],
        ["--admin-api-key", SECRET],
    ],
)
def test_a_key_in_the_wrong_place_is_not_repeated(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err
    assert "hotswap serve --api-key" in shown.err
