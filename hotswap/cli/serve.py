"""``hotswap serve``."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotswap.cli.codes import ExitCode
from hotswap.cli.output import complain, error_object, print_json, wants_json, wrong_usage
from hotswap.cli.parser import JsonParser, add_serve_json, parser_of
from hotswap.cli.unknown_flags import parse_known

if TYPE_CHECKING:
    from hotswap.plugins import Plugins
    from hotswap.serve import StartError
    from hotswap.settings import Settings

__all__ = ["run_serve"]

_FORMAT = "--log-format"


def run_serve(arguments: Sequence[str]) -> int:
    """Serve until a signal comes. ``arguments`` are those of the whole command line."""
    from hotswap.settings import SettingsError

    try:
        settings, plugins = _told(arguments)
    except SettingsError as error:
        return wrong_usage("serve", str(error), as_json=_is_json(arguments))

    from hotswap.serve import StartError, run

    try:
        run(settings, plugins)
    except StartError as error:
        return _not_started(error, as_json=settings.log_format == "json")
    return ExitCode.DONE


def _told(arguments: Sequence[str]) -> tuple[Settings, Plugins]:
    """Raises: SettingsError; SystemExit for a flag whose value is none."""
    from hotswap.settings import OPTIONS, settings_from

    _check_early(arguments)
    from hotswap.cli.plugins import load_installed

    plugins = load_installed()
    flags = [flag for option in (*OPTIONS, *plugins.options) for flag in option.flags]
    parser = parser_of(plugins.options, as_json=_is_json(arguments))
    options = parse_known(parser, arguments, flags=flags)
    return settings_from(options, plugin_options=plugins.options), plugins


def _not_started(error: StartError, *, as_json: bool) -> ExitCode:
    code = ExitCode(error.exit_code)
    if not as_json:
        complain("serve", str(error))
        return code
    # Its log is for those who watch servers, the object for whoever started this one.
    logging.getLogger("hotswap.serve").error("%s", error)
    kind = "UsageError" if code is ExitCode.USAGE else "StartError"
    print_json(error_object(kind, str(error), weights="untouched", code=code))
    return code


def _is_json(arguments: Sequence[str]) -> bool:
    """Whether programs read this server's log, by a command line that may be wrong."""
    told = os.environ.get("HOTSWAP_LOG_FORMAT")
    for at, word in enumerate(arguments):
        if word == _FORMAT:
            told = next(iter(arguments[at + 1 :]), None)
        elif word.startswith(f"{_FORMAT}="):
            told = word.partition("=")[2]
    return told == "json" or wants_json(arguments)


def _check_early(arguments: Sequence[str]) -> None:
    """Find what is wrong with the server's own settings before plug-ins import torch, and
    have what the plug-ins log look like the rest.

    Raises: SettingsError; SystemExit for a flag whose value is none.
    """
    from hotswap.logs import configure_logs
    from hotswap.settings import add_core_flags, model_directory, settings_from

    kind = JsonParser if _is_json(arguments) else argparse.ArgumentParser
    parser = kind(prog="hotswap serve", allow_abbrev=False, add_help=False)
    add_core_flags(parser)
    add_serve_json(parser)
    options, others = parser.parse_known_args(arguments)
    if not {"-h", "--help"}.intersection(others):
        settings = settings_from(options)
        # A flag that is not known here may be the misspelt one: only plug-ins can tell.
        if settings.model is not None or not any(word.startswith("--") for word in others):
            model_directory(settings)
        configure_logs(level=settings.log_level, style=settings.log_format)
