import argparse
import os
from typing import Any

import pytest

from hotswap.options import Option
from hotswap.settings import OPTIONS, Settings, SettingsError, add_flags, settings_from

ROOTS = Option(name="weights-root", help="where checkpoints lie", repeatable=True)


def settings(*flags: str, **environ: str) -> Settings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser, [ROOTS])
    return settings_from(parser.parse_args(flags), environ=environ, plugin_options=[ROOTS])


def test_defaults() -> None:
    seen = settings()

    assert (seen.host, seen.port) == ("127.0.0.1", 30000)
    assert (seen.allow_weight_update, seen.while_paused, seen.load_mode) == (
        False,
        "auto",
        "staged",
    )
    assert seen.max_http_request_bytes == 1024 * 1024
    assert seen == Settings(plugin_options={"weights-root": ()})


@pytest.mark.parametrize(
    ("flags", "variables", "field", "value"),
    [
        (["--model", "/m"], {"HOTSWAP_MODEL": "/m"}, "model", "/m"),
        (["--model-path", "/m"], {"HOTSWAP_MODEL_PATH": "/m"}, "model", "/m"),
        (["--host", "::1"], {"HOTSWAP_HOST": "::1"}, "host", "::1"),
        (["--port", "0"], {"HOTSWAP_PORT": "0"}, "port", 0),
        (["--dtype", "float32"], {"HOTSWAP_DTYPE": "float32"}, "dtype", "float32"),
        (["--device", "cpu"], {"HOTSWAP_DEVICE": "cpu"}, "device", "cpu"),
        (["--while-paused", "hold"], {"HOTSWAP_WHILE_PAUSED": "hold"}, "while_paused", "hold"),
        (["--hold-s", "2.5"], {"HOTSWAP_HOLD_S": "2.5"}, "hold_s", 2.5),
        (
            ["--generate-timeout-s", "2.5"],
            {"HOTSWAP_GENERATE_TIMEOUT_S": "2.5"},
            "generate_timeout_s",
            2.5,
        ),
        (
            ["--allow-weight-update"],
            {"HOTSWAP_ALLOW_WEIGHT_UPDATE": "1"},
            "allow_weight_update",
            True,
        ),
        (
            ["--allow-weight-update"],
            {"GR_ALLOW_WEIGHT_UPDATE": "1"},
            "allow_weight_update",
            True,
        ),
        (["--load-mode", "direct"], {"HOTSWAP_LOAD_MODE": "direct"}, "load_mode", "direct"),
        (
            ["--max-running-requests", "3"],
            {"HOTSWAP_MAX_RUNNING_REQUESTS": "3"},
            "max_running_requests",
            3,
        ),
        (
            ["--max-queued-requests", "4"],
            {"HOTSWAP_MAX_QUEUED_REQUESTS": "4"},
            "max_queued_requests",
            4,
        ),
        (
            ["--chunked-prefill-size", "64"],
            {"HOTSWAP_CHUNKED_PREFILL_SIZE": "64"},
            "chunked_prefill_size",
            64,
        ),
        (
            ["--max-total-tokens", "4096"],
            {"HOTSWAP_MAX_TOTAL_TOKENS": "4096"},
            "max_total_tokens",
            4096,
        ),
        (
            ["--mem-fraction-static", "0.25"],
            {"HOTSWAP_MEM_FRACTION_STATIC": "0.25"},
            "mem_fraction_static",
            0.25,
        ),
        (
            ["--max-http-request-bytes", "9"],
            {"HOTSWAP_MAX_HTTP_REQUEST_BYTES": "9"},
            "max_http_request_bytes",
            9,
        ),
        (["--graceful-s", "1"], {"HOTSWAP_GRACEFUL_S": "1"}, "graceful_s", 1.0),
        (["--log-level", "debug"], {"HOTSWAP_LOG_LEVEL": "debug"}, "log_level", "debug"),
        (["--load-strategy", "x"], {"HOTSWAP_LOAD_STRATEGY": "x"}, "load_strategy", "x"),
        (["--pull-threads", "3"], {"HOTSWAP_PULL_THREADS": "3"}, "pull_threads", 3),
        (
            ["--local-root", "/a", "--local-root", "b"],
            {"HOTSWAP_LOCAL_ROOT": f"/a{os.pathsep}b"},
            "local_root",
            ("/a", "b"),
        ),
        (
            ["--local-checkpoint", "log"],
            {"HOTSWAP_LOCAL_CHECKPOINT": "log"},
            "local_checkpoint",
            "log",
        ),
        (["--source-root", "/a"], {"HOTSWAP_SOURCE_ROOT": "/a"}, "source_root", ("/a",)),
        (
            ["--source-root", "/a", "--source-root", "s3://b/c", "--source-root", "gs://d"],
            {"HOTSWAP_SOURCE_ROOT": f"/a{os.pathsep}s3://b/c{os.pathsep}gs://d"},
            "source_root",
            ("/a", "s3://b/c", "gs://d"),
        ),
        (["--workers", "1"], {"HOTSWAP_WORKERS": "1"}, "workers", 1),
    ],
)
def test_a_flag_and_its_variable(
    flags: list[str], variables: dict[str, str], field: str, value: object
) -> None:
    assert getattr(settings(*flags), field) == value
    assert getattr(settings(**variables), field) == value


def test_every_option_is_a_field_of_the_settings() -> None:
    names = {option.name.replace("-", "_") for option in OPTIONS}

    assert names | {"plugin_options"} == set(Settings.__dataclass_fields__)


def test_a_flag_wins_over_its_variable() -> None:
    assert settings("--port", "1", HOTSWAP_PORT="2").port == 1
    assert not settings("--no-allow-weight-update", GR_ALLOW_WEIGHT_UPDATE="1").allow_weight_update
    assert not settings(
        HOTSWAP_ALLOW_WEIGHT_UPDATE="0", GR_ALLOW_WEIGHT_UPDATE="1"
    ).allow_weight_update


def test_an_empty_variable_counts_as_unset() -> None:
    assert settings(HOTSWAP_PORT="", GR_ALLOW_WEIGHT_UPDATE="").port == 30000


@pytest.mark.parametrize("empty", ["", " "])
@pytest.mark.parametrize(
    "flag",
    ["--model", "--model-path", "--host", "--port", "--dtype", "--hold-s", "--weights-root"],
)
def test_an_empty_flag_is_refused(
    flag: str, empty: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, SettingsError)) as caught:
        settings(flag, empty)

    shown = capsys.readouterr().err or str(caught.value)
    assert flag.removesuffix("-path") in shown.splitlines()[-1]


@pytest.mark.parametrize("name", ["WEIGHTS_ROOT", "LOCAL_ROOT", "SOURCE_ROOT"])
@pytest.mark.parametrize("empty", ["", " ", ":", "::", " : "])
def test_a_list_without_anything_in_it_is_not_the_same_as_no_list(empty: str, name: str) -> None:
    with pytest.raises(SettingsError, match=rf"^HOTSWAP_{name}"):
        settings(**{f"HOTSWAP_{name}": empty})


@pytest.mark.parametrize("field", ["host", "model"])
def test_empty_settings_of_embedders(field: str) -> None:
    wrong: Any = {field: ""}
    with pytest.raises(SettingsError, match=f"^--{field} is empty"):
        Settings(**wrong)


def test_plugin_options() -> None:
    flags = settings("--weights-root", "/a", "--weights-root", "/b")
    variable = settings(HOTSWAP_WEIGHTS_ROOT="/a:/b")

    assert flags.plugin_options == variable.plugin_options == {"weights-root": ("/a", "/b")}


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"HOTSWAP_PORT": "http"}, "HOTSWAP_PORT"),
        ({"HOTSWAP_PORT": "65536"}, "--port is 65536"),
        ({"HOTSWAP_DTYPE": "int8"}, "--dtype is int8, wanted one of auto, float32"),
        ({"HOTSWAP_WHILE_PAUSED": "wait"}, "reject, hold"),
        ({"HOTSWAP_LOAD_MODE": "fast"}, "staged, direct"),
        ({"HOTSWAP_ALLOW_WEIGHT_UPDATE": "maybe"}, "HOTSWAP_ALLOW_WEIGHT_UPDATE"),
        ({"GR_ALLOW_WEIGHT_UPDATE": "maybe"}, "GR_ALLOW_WEIGHT_UPDATE: 'maybe'"),
        ({"HOTSWAP_HOLD_S": "-1"}, "--hold-s"),
        ({"HOTSWAP_HOLD_S": "nan"}, "HOTSWAP_HOLD_S: 'nan' is no value for hold-s, wanted float"),
        ({"HOTSWAP_GENERATE_TIMEOUT_S": "-1"}, "--generate-timeout-s"),
        ({"HOTSWAP_MAX_RUNNING_REQUESTS": "0"}, "--max-running-requests"),
        ({"HOTSWAP_MAX_QUEUED_REQUESTS": "0"}, "--max-queued-requests"),
        ({"HOTSWAP_CHUNKED_PREFILL_SIZE": "0"}, "--chunked-prefill-size"),
        ({"HOTSWAP_MAX_TOTAL_TOKENS": "-1"}, "--max-total-tokens"),
        ({"HOTSWAP_MEM_FRACTION_STATIC": "1.5"}, "--mem-fraction-static is 1.5, wanted 0.001 to 1"),
        ({"HOTSWAP_WORKERS": "2"}, "--workers is 2, wanted 1"),
        ({"WEB_CONCURRENCY": "4"}, "WEB_CONCURRENCY is 4, wanted 1"),
    ],
)
def test_a_bad_setting_is_named_in_one_line(variables: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(**variables)

    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flag", ["--mode", "--allow-weight", "--nope"])
def test_no_abbreviation_and_no_unknown_flag(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        settings(flag)

    assert caught.value.code == 2
    assert flag in capsys.readouterr().err


def test_one_worker_may_be_asked_for() -> None:
    assert settings(WEB_CONCURRENCY="1").workers == 1


def test_settings_are_checked_for_embedders_too() -> None:
    wrong: Any = {"load_mode": "fast"}
    with pytest.raises(SettingsError, match="load-mode"):
        Settings(**wrong)
