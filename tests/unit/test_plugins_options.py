"""Options: one declaration, the same texts on the command line and in the environment."""

import argparse
import os
from typing import Any

import pytest

from hotswap.errors import PluginError
from hotswap.options import Option, add_option_flags, option_values
from hotswap.testing.endings import ENDINGS

ROOTS = Option(name="weights-root", help="100% of it", repeatable=True)
COUNT = Option(name="count", help="how many", type=int, default=3)
RATIO = Option(name="ratio", help="how much", type=float)
FAST = Option(name="fast", help="at once", type=bool, default=False)
ALL = (ROOTS, COUNT, RATIO, FAST)


def values(*argv: str, **environ: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_option_flags(parser, ALL)
    parser.format_help()
    return option_values(ALL, flags=parser.parse_args(argv), environ=environ)


def test_defaults() -> None:
    assert values() == {"weights-root": (), "count": 3, "ratio": None, "fast": False}


def test_without_flags_the_environment_counts() -> None:
    assert option_values([COUNT], environ={"HOTSWAP_COUNT": "4"}) == {"count": 4}


def test_flags() -> None:
    got = values(
        "--weights-root", "/a", "--weights-root=/b", "--count=7", "--ratio", ".5", "--fast"
    )
    assert got == {"weights-root": ("/a", "/b"), "count": 7, "ratio": 0.5, "fast": True}


def test_variables() -> None:
    got = values(
        HOTSWAP_WEIGHTS_ROOT=os.pathsep.join(["/a", "", "/b"]),
        HOTSWAP_COUNT="7",
        HOTSWAP_RATIO="1e-3",
        HOTSWAP_FAST="yes",
    )
    assert got == {"weights-root": ("/a", "/b"), "count": 7, "ratio": 0.001, "fast": True}


def test_a_flag_wins_over_its_variable() -> None:
    got = values("--weights-root", "/a", "--no-fast", HOTSWAP_WEIGHTS_ROOT="/b", HOTSWAP_FAST="1")
    assert (got["weights-root"], got["fast"]) == (("/a",), False)


@pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
def test_true(text: str) -> None:
    assert FAST.parse(text) is True


@pytest.mark.parametrize("text", ["0", "False", "no", "off"])
def test_false(text: str) -> None:
    assert FAST.parse(text) is False


@pytest.mark.parametrize(
    ("option", "text"), [(FAST, "2"), (FAST, ""), (COUNT, "1.5"), (COUNT, ""), (RATIO, "x")]
)
def test_texts_that_do_not_parse_name_flag_or_variable(
    option: Option, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=f"^{option.env}: .*no value for {option.name}, wanted"):
        option_values([option], environ={option.env: text})
    if option is not FAST:
        with pytest.raises(SystemExit):
            values(f"--{option.name}={text}")
        assert f"--{option.name}: {text!r} is no value" in capsys.readouterr().err


def test_a_text_that_is_none_of_the_choices_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    colour = Option(name="colour", help="", choices=("red", "green"), default="red")
    assert option_values([colour], environ={colour.env: "green"}) == {"colour": "green"}
    with pytest.raises(ValueError, match="'blue' is no value for colour, wanted one of red, green"):
        option_values([colour], environ={colour.env: "blue"})


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'nan' is no value for ratio, wanted float"):
        option_values([RATIO], environ={RATIO.env: "nan"})


def test_a_plug_in_checks_what_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    def check(value: float) -> None:
        if value > 1:
            raise ValueError(f"share is {value:g}, wanted 1 at most")

    share = Option(name="share", help="", type=float, check=check)
    assert option_values([share], environ={share.env: "0.5"}) == {"share": 0.5}
    with pytest.raises(ValueError, match="HOTSWAP_SHARE: share is 2, wanted 1 at most"):
        option_values([share], environ={share.env: "2"})
    parser = argparse.ArgumentParser()
    add_option_flags(parser, [share])
    with pytest.raises(SystemExit):
        parser.parse_args(["--share", "2"])
    assert "argument --share: share is 2, wanted 1 at most" in capsys.readouterr().err


@pytest.mark.parametrize(
    "declaration",
    [
        {"name": "Upper"},
        {"name": "under_score"},
        {"name": "-dash"},
        {"name": "dash-"},
        {"name": ""},
        {"name": 3},
        {"type": list},
        {"type": bool, "repeatable": True},
        {"repeatable": True, "default": ("a",)},
        {"type": int, "default": "3"},
        {"type": int, "default": True},
        {"type": int, "choices": ("1",)},
        {"choices": ("a",), "default": "b"},
    ],
)
def test_declarations_that_cannot_work_are_refused(declaration: dict[str, Any]) -> None:
    with pytest.raises(PluginError, match=r"^option "):
        Option(**({"name": "a", "help": ""} | declaration))


class Mute(ValueError):
    def __str__(self) -> str:
        raise KeyError("words")


@pytest.mark.parametrize("raised", [*(make() for make in ENDINGS.values()), KeyError("k"), Mute()])
def test_a_check_that_ends_in_any_way_has_refused_the_value(raised: BaseException) -> None:
    def check(value: int) -> None:
        raise raised

    option = Option(name="share", help="", type=int, check=check)
    with pytest.raises(ValueError, match=r"\w") as caught:
        option.parse("7")
    seen = "(its message cannot be read)" if isinstance(raised, Mute) else type(raised).__name__
    assert seen in str(caught.value)
    with pytest.raises(ValueError, match=r"^HOTSWAP_SHARE: "):
        option_values([option], environ={"HOTSWAP_SHARE": "7"})
