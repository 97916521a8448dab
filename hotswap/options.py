"""Settings that a plug-in brings: one declaration, a flag and a ``HOTSWAP_*`` variable.

A flag wins over the variable, the variable over the default. Both are parsed by
the same code, so that they accept the same texts.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hotswap.errors import PluginError
from hotswap.foreign import said, words_of
from hotswap.object_url import SCHEMES

__all__ = ["Option", "OptionType", "add_option_flags", "option_values"]

OptionType: TypeAlias = type[str] | type[int] | type[float] | type[bool]

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_BOOLS = {"1": True, "true": True, "yes": True, "on": True} | {
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """``--name`` on the command line and ``HOTSWAP_NAME`` in the environment.

    A repeatable option has a tuple of ``type``: the flag may stand several times, and
    the variable separates values with ``os.pathsep``. A bool takes ``--name`` and
    ``--no-name``. ``choices`` are the texts that it may be, which shells complete; ``check``
    is called with each value that somebody gives, and raises ValueError, saying what was
    wanted, for one of no use: a server then does not start.
    Raises: PluginError for a declaration that cannot work.
    """

    name: str
    help: str
    type: OptionType = str
    repeatable: bool = False
    default: object = None
    choices: tuple[str, ...] = ()
    check: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise PluginError(f"option name {self.name!r}, wanted lower-case words joined by '-'")
        if self.type not in (str, int, float, bool):
            raise PluginError(f"option {self.name}: type {self.type!r}, wanted str|int|float|bool")
        if self.repeatable and (self.type is bool or self.default is not None):
            raise PluginError(
                f"option {self.name}: a repeatable option is no bool, and its default is ()"
            )
        if self.default is not None and type(self.default) is not self.type:
            raise PluginError(
                f"option {self.name}: default {self.default!r}, wanted a {self.type.__name__}"
            )
        if self.choices and (self.type is not str or self.default not in (None, *self.choices)):
            raise PluginError(
                f"option {self.name}: choices are texts, and its default is one of them or None"
            )

    @property
    def flags(self) -> tuple[str, ...]:
        """The command-line flag, and for a bool the one that denies it."""
        return (f"--{self.name}", f"--no-{self.name}")[: 2 if self.type is bool else 1]

    @property
    def env(self) -> str:
        """The environment variable."""
        return "HOTSWAP_" + self.name.upper().replace("-", "_")

    def parse(self, text: str) -> str | int | float | bool:
        """One value from its text. Raises: ValueError saying what was wanted."""
        if not text.strip():
            # An empty address, directory or limit would quietly mean "any".
            raise ValueError(f"{text!r} is no value for {self.name}, wanted {self._wanted}")
        try:
            value = _BOOLS[text.strip().lower()] if self.type is bool else self.type(text)
        except (KeyError, ValueError):
            value = math.nan
        # What is no number is no value of any option, though floats have it.
        if value != value or (self.choices and value not in self.choices):
            raise ValueError(f"{text!r} is no value for {self.name}, wanted {self._wanted}")
        self._checked(value)
        return value

    def _checked(self, value: str | int | float | bool) -> None:
        """Raises: ValueError, whatever the check of a plug-in ends with."""
        if self.check is None:
            return
        try:
            self.check(value)
        except ValueError as error:
            raise ValueError(words_of(error)) from error
        except BaseException as error:
            raise ValueError(
                f"{value!r} cannot be checked for {self.name}: {said(error)}"
            ) from error

    @property
    def _wanted(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.type is str:
            return "a text that is not empty"
        return "one of " + ", ".join(_BOOLS) if self.type is bool else self.type.__name__

    def parse_env(self, text: str, *, variable: str | None = None) -> object:
        """The value of the variable ``env``, or of another name that it goes by.

        Raises: ValueError naming the variable.
        """
        variable = variable or self.env
        texts = _listed(text) if self.repeatable else [text]
        try:
            values = tuple(map(self.parse, texts))
        except ValueError as error:
            raise ValueError(f"{variable}: {error}") from None
        if not values:
            # A list that nothing is in must not count as no list.
            raise ValueError(
                f"{variable} is {text!r} and has no value for {self.name} in it, "
                "wanted one or more, or the variable unset"
            )
        return values if self.repeatable else values[0]


def _listed(text: str) -> list[str]:
    """What ``os.pathsep`` separates; the colon of a known store's URL separates nothing."""
    items = list[str]()
    for item in text.split(os.pathsep):
        if items and items[-1] in SCHEMES and item.startswith("//"):
            items[-1] += f"{os.pathsep}{item}"
        elif item:
            items.append(item)
    return items


def add_option_flags(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add a flag for each option; one that is not given stays None in the namespace."""
    for option in options:
        text = f"{option.help} (also {option.env})".replace("%", "%%")
        if option.type is bool:
            parser.add_argument(
                option.flags[0], action=argparse.BooleanOptionalAction, default=None, help=text
            )
        else:
            parser.add_argument(
                option.flags[0],
                action="append" if option.repeatable else "store",
                type=_argument_type(option),
                metavar=option.type.__name__.upper(),
                default=None,
                help=text,
            )


def _argument_type(option: Option) -> Callable[[str], object]:
    def parse(text: str) -> object:
        try:
            return option.parse(text)
        except ValueError as error:
            # argparse shows the message of this class only.
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def option_values(
    options: Iterable[Option],
    *,
    flags: argparse.Namespace | None = None,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, object]:
    """The value of every option by its name: flag, else variable, else default.

    Raises: ValueError for a variable that does not parse.
    """
    return {option.name: _value(option, flags, environ) for option in options}


def _value(option: Option, flags: argparse.Namespace | None, environ: Mapping[str, str]) -> object:
    given = getattr(flags, option.name.replace("-", "_"), None)
    if given is not None:
        return tuple(given) if option.repeatable else given
    if option.env in environ:
        return option.parse_env(environ[option.env])
    return () if option.repeatable else option.default
