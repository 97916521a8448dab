import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import hotswap
from hotswap import __version__
from hotswap.cli import main


def run(*arguments: str) -> int | str | None:
    """The exit code of ``hotswap ARGUMENTS``, whether returned or raised."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("HOTSWAP_", "GR_")) or name == "WEB_CONCURRENCY":
            monkeypatch.delenv(name)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"hotswap {__version__}\n"


def test_no_command_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    shown = capsys.readouterr().out
    assert "serve" in shown
    assert "plugins" in shown


def test_json_without_a_command_says_that_one_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["class"] == "UsageError"
    assert error["message"].startswith("no command was given; wanted one of serve, demo, ")
    assert run("--jason") == 2
    assert "unrecognized arguments: --jason" in capsys.readouterr().err


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sevre") == 2
    assert "'sevre' is no command; did you mean serve?" in capsys.readouterr().err
    assert run("xyz") == 2
    assert "'xyz' is no command; wanted one of serve, demo, " in capsys.readouterr().err


def test_help_of_serve_names_flags_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("serve", "--help") == 0
    shown = capsys.readouterr().out
    for text in ("--allow-weight-update", "HOTSWAP_ALLOW_WEIGHT_UPDATE", "30000 by default"):
        assert text in shown


def test_openmp_is_told_to_wait_passively_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Set and taken again, so that monkeypatch puts back what main sets.
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    run("--version")
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"

    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    run("--version")
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_torch_is_not_imported_before_it_is_needed() -> None:
    code = (
        "import sys, hotswap, hotswap.cli, hotswap.settings\n"
        "assert 'torch' not in sys.modules and 'starlette' not in sys.modules\n"
        "assert set(hotswap.__all__) <= set(dir(hotswap))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_every_public_name_is_found_and_no_other() -> None:
    for name in hotswap.__all__:
        assert getattr(hotswap, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        _ = hotswap.Nope


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--model is missing"),
        (("--model", "/nonexistent/model"), "--model /nonexistent/model is not there"),
        (("--model", __file__), "is a file"),
        (("--model", ".", "--workers", "2"), "--workers is 2, wanted 1"),
        (("--model", ".", "--load-mode", "fast"), "--load-mode is fast"),
        (("--model", ".", "--port", "70000"), "--port is 70000"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("hotswap serve: ")
    assert named in error
    assert error.count("\n") == 1


def test_a_misspelt_model_flag_is_named_rather_than_missed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("serve", "--modle", "/secret") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("hotswap serve: --modle is no flag of hotswap serve")
    assert "did you mean --model?" in error
    assert "/secret" not in error
    # A plug-in's flag is no reason to call the model anything but missing.
    assert run("serve", "--weights-root", ".") == 2
    assert "--model is missing" in capsys.readouterr().err.splitlines()[-1]


# What it was told is wrong, wherever that is found: by argparse, before plug-ins and after them.
WRONG: list[tuple[tuple[str, ...], str]] = [
    (("--port", "http"), "'http' is no value for port"),
    (("--port", "70000"), "--port is 70000"),
    (("--dialect", "latin"), "--dialect is latin"),
    (("--no-such-flag",), "--no-such-flag is no flag"),
    (("--model", "/nonexistent/model"), "--model /nonexistent/model is not there"),
    (("--host", "a" * 80 + ".x"), "cannot listen on "),
    (("--host", "\u00e4" * 80 + ".x"), "cannot listen on "),
    (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1:0: Cannot assign requested address"),
    (("--engine", "nope"), "--engine: engine 'nope' is not installed"),
    (("--device", "cuda"), "--device: device cuda was asked for"),
    (("--load-strategy", "nope"), "--load-strategy: load strategy 'nope' is not installed"),
    (("--weights-root", "/nonexistent/root"), "weights-root /nonexistent/root is no directory"),
    (("--local-root", "/nonexistent/root"), "--local-root /nonexistent/root is no directory"),
    (("--wait-visible-s", "nan"), "'nan' is no value for wait-visible-s"),
    (("--wait-visible-s", "60"), "wait-visible-s is 60.0, wanted seconds"),
    (("--follow", "s4://bucket/run"), "--follow: s4://... is of no store that is known, wanted"),
    (("--follow", "s3://me:pw@bucket/run"), "--follow: s3://*** is no plain URL of a bucket"),
    (("--follow", "gs://bucket/run"), "what reads gs:// is not installed (there is no module gcs"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=lambda each: str(each)[:30])
def test_whatever_is_wrong_with_what_serve_was_told_is_code_2_and_json_where_asked_for(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    command = ("serve", "--model", str(tmp_path), "--port", "0", *arguments)
    assert run(*command) == 2
    assert said in capsys.readouterr().err
    for as_json in (("--json",), ("--log-format", "json"), ("--log-format=json",)):
        assert run(*command, *as_json) == 2
        [shown] = capsys.readouterr().out.splitlines()
        error = json.loads(shown)["error"]
        assert (error["class"], error["weights"], error["exit_code"]) == (
            "UsageError",
            "untouched",
            2,
        )
        assert said in error["message"]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"HOTSWAP_HOLD_S": "long"}, "HOTSWAP_HOLD_S: 'long' is no value for hold-s"),
        ({"HOTSWAP_WEIGHTS_ROOT": "/nonexistent/root"}, "/nonexistent/root is no directory"),
        ({"HOTSWAP_WAIT_VISIBLE_S": "nan"}, "HOTSWAP_WAIT_VISIBLE_S: 'nan' is no value"),
        ({"HOTSWAP_API_KEY": "a b"}, "--api-key (or HOTSWAP_API_KEY)"),
        ({"WEB_CONCURRENCY": "2"}, "WEB_CONCURRENCY is 2"),
    ],
)
def test_so_is_what_a_variable_says(
    variables: dict[str, str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ({"HOTSWAP_LOG_FORMAT": "json"} | variables).items():
        monkeypatch.setenv(name, value)
    assert run("serve", "--model", str(tmp_path), "--port", "0") == 2
    assert said in json.loads(capsys.readouterr().out)["error"]["message"]


def test_a_start_that_fails_is_code_1_and_json_where_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", "--model", str(tmp_path), "--port", "0", "--json") == 1
    [shown] = capsys.readouterr().out.splitlines()
    error = json.loads(shown)["error"]
    assert (error["class"], error["exit_code"]) == ("StartError", 1)
    assert error["message"].startswith(f"cannot load {tmp_path}: ")


@pytest.mark.parametrize("command", ["state", "serve"])
def test_a_key_where_none_belongs_is_wrong_usage_in_json_too(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ("--api-key", "secret", command, "--json")
    assert run(*before) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out)["error"]["class"] == "UsageError"
    assert "secret" not in shown.out + shown.err


@pytest.mark.parametrize("arguments", [("--port", "http"), ("--no-such-flag",)])
def test_a_bad_flag_is_exit_code_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", "--model", ".", *arguments) == 2
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "abc"],
        ["--host", ""],
        ["--model", "/nonexistent/model"],
        ["--model", ".", "--load-mode", "fast", "--weights-root", "/nowhere"],
        [],
    ],
)
def test_a_wrong_setting_does_not_wait_for_plugins(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom hotswap.cli import main\n"
        "try:\n    code = main(sys.argv[1:])\nexcept SystemExit as ended:\n    code = ended.code\n"
        "assert 'torch' not in sys.modules\nsys.exit(code)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_host_that_is_no_name_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", "--model", str(tmp_path), "--host", "a" * 80 + ".x") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("hotswap serve: cannot listen on ")


def test_many_workers_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "2")

    assert run("serve", "--model", ".") == 2
    assert "WEB_CONCURRENCY is 2" in capsys.readouterr().err


def test_a_port_in_use_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run("serve", "--model", str(tmp_path), "--port", str(port)) == 1

    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith(f"hotswap serve: cannot listen on 127.0.0.1:{port}: ")
    assert error.endswith("; choose another with --port, or --port 0 for any that is free\n")
    assert "Traceback" not in error


def test_a_directory_without_a_model_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", "--model", str(tmp_path), "--port", "0") == 1

    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith(f"hotswap serve: cannot load {tmp_path}: ")
    assert "Traceback" not in error


def test_what_an_empty_directory_lacks_is_said_as_of_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", "--model", str(tmp_path), "--port", "0") == 1

    error = capsys.readouterr().err
    assert "which has none; put the model's beside the weights (a server that embeds" in error


def test_an_engine_that_is_not_there_loads_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", "--model", str(tmp_path), "--port", "0", "--engine", "embeded") == 2

    error = capsys.readouterr().err
    assert "did you mean 'embedded'?" in error
    assert "loading" not in error


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("refresh", "'refresh' is no import path, wanted package.module.function"),
        ("no_such_package.refresh", "no_such_package.refresh cannot be imported"),
        ("os.sep", "os.sep is a str, wanted a function"),
        ("os.getcwd", "wanted (source_dir, target_version)"),
    ],
)
@pytest.mark.parametrize("way", ["flag", "variable"])
def test_an_operators_hook_of_no_use_refuses_the_start(
    path: str,
    said: str,
    way: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flag = ["--custom-pull-weights-pre-read-hook", path]
    if way == "variable":
        monkeypatch.setenv("HOTSWAP_CUSTOM_PULL_WEIGHTS_PRE_READ_HOOK", path)
        flag = []
    assert run("serve", "--model", str(tmp_path), "--port", "0", *flag) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("hotswap serve: --custom-pull-weights-pre-read-hook: ")
    assert said in error


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--load-strategy", "rsync"), "--load-strategy: load strategy 'rsync' is not installed"),
        (("--local-root", "/nonexistent/root"), "--local-root /nonexistent/root is no directory"),
        (("--source-root", "/nonexistent/root"), "--source-root /nonexistent/root is no directory"),
    ],
)
def test_where_pulls_read_and_write_is_known_before_the_model_is_loaded(
    flags: tuple[str, ...], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", "--model", str(tmp_path), "--port", "0", *flags) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"hotswap serve: {named}")
