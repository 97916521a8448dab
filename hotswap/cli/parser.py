"""The parser of the command line, made of the commands as data."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import NoReturn

from hotswap._version import __version__
from hotswap.cli.codes import ExitCode
from hotswap.cli.commands import COMMANDS, Flag
from hotswap.cli.output import print_json, usage_object
from hotswap.cli.values import OneOf
from hotswap.options import Option

__all__ = ["JsonParser", "add_serve_json", "parser_of"]


class JsonParser(argparse.ArgumentParser):
    """Tells of a wrong command line as JSON; its subparsers do too."""

    def error(self, message: str) -> NoReturn:
        print_json(usage_object(f"{self.prog}: {message} (see {self.prog} --help)"))
        self.exit(ExitCode.USAGE)


def parser_of(
    serve_options: Iterable[Option] | None, *, as_json: bool = False
) -> argparse.ArgumentParser:
    """The parser; ``serve`` has its flags only when the plug-ins' are known."""
    parser = (JsonParser if as_json else argparse.ArgumentParser)(
        prog="hotswap",
        description="Replace the weights of a live inference server without a restart.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hotswap {__version__}")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        added = parsers.add_parser(command.name, help=command.help, allow_abbrev=False)
        for flag in command.flags:
            _add(added, flag)
        if command.name == "serve" and serve_options is not None:
            from hotswap.settings import add_flags

            add_flags(added, serve_options)
            add_serve_json(added)
    return parser


def add_serve_json(parser: argparse.ArgumentParser) -> None:
    """``serve --json`` is ``serve --log-format json``: what a server prints is its log."""
    parser.add_argument(
        "--json",
        dest="log_format",
        action="store_const",
        const="json",
        help="the same as --log-format json",
    )


def _add(parser: argparse.ArgumentParser, flag: Flag) -> None:
    if flag.metavar is None and flag.name.startswith("--"):
        action = argparse.BooleanOptionalAction if flag.negative else "store_true"
        default = flag.default if flag.negative else False
        parser.add_argument(flag.name, action=action, default=default, help=flag.help)
        return
    argument = parser.add_argument(
        flag.name,
        type=OneOf(choices=flag.choices) if flag.choices else flag.type,
        default=flag.default,
        choices=flag.choices or None,
        help=_told(flag),
    )
    argument.metavar = flag.metavar
    # A flag is optional to argparse unless it is told, an argument of a command never is.
    argument.required = flag.required or not flag.name.startswith("--")


def _told(flag: Flag) -> str:
    """Its help, with what holds without it."""
    match flag.default:
        case None:
            return flag.help
        case float() as seconds:
            return f"{flag.help} (default: {seconds:g})"
        case other:
            return f"{flag.help} (default: {other})"
