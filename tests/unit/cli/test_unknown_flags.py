"""A misspelt flag of ``hotswap serve`` is refused in one line."""

import argparse
from collections.abc import Sequence

import pytest

from hotswap.cli.unknown_flags import parse_known, refusal_in, refusal_of
from hotswap.settings import SettingsError

FLAGS = ("--port", "--host", "--max-running-requests")


@pytest.mark.parametrize(
    ("unknown", "named"),
    [
        (
            ["--prot", "80"],
            "--prot is no flag of hotswap serve, nor of a plug-in that is in use; "
            "did you mean --port? see",
        ),
        (["--max_running_requests=3"], "did you mean --max-running-requests? see"),
        (["--xyzzy"], "in use; see hotswap serve --help"),
        (["80", "90"], "2 words that belong to no flag"),
        (["-p", "80"], "2 words that belong to no flag"),
    ],
)
def test_it_says_what_was_meant(unknown: Sequence[str], named: str) -> None:
    assert named in refusal_of(unknown, flags=FLAGS)


def test_it_repeats_no_value() -> None:
    for unknown in (["--api_key=secret"], ["--api-keys", "secret"], ["secret"]):
        assert "secret" not in refusal_of(unknown, flags=("--api-key",))


def test_known_flags_are_parsed_and_unknown_ones_refused() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port")
    assert parse_known(parser, ["--port", "1"], flags=FLAGS).port == "1"
    with pytest.raises(SettingsError, match="did you mean --port"):
        parse_known(parser, ["--prot", "1"], flags=FLAGS)


def test_any_command_says_what_was_meant() -> None:
    assert refusal_in("state", ["--jason"]) == (
        "hotswap state takes no '--jason'; did you mean --json? (see hotswap state --help)"
    )
    assert refusal_in("check", ["x", "y"]) == (
        "hotswap check takes no 'x' 'y' (see hotswap check --help)"
    )
