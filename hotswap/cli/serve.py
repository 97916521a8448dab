"""``hotswap serve``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from hotswap.cli.codes import ExitCode
from hotswap.cli.parser import add_serve_json, parser_of
from hotswap.cli.unknown_flags import parse_known

__all__ = ["run_serve"]


def run_serve(arguments: Sequence[str]) -> int:
    """Serve until a signal comes. ``arguments`` are those of the whole command line."""
    from hotswap.settings import OPTIONS, SettingsError, settings_from

    try:
        _check_early(arguments)
        from hotswap.cli.plugins import load_installed

        plugins = load_installed()
        flags = [flag for option in (*OPTIONS, *plugins.options) for flag in option.flags]
        options = parse_known(parser_of(plugins.options), arguments, flags=flags)
        settings = settings_from(options, plugin_options=plugins.options)
    except SettingsError as error:
        print(f"hotswap serve: {error}", file=sys.stderr)
        return ExitCode.USAGE

    from hotswap.serve import StartError, run

    try:
        run(settings, plugins)
    except StartError as error:
        if settings.log_format == "json":
            logging.getLogger("hotswap.serve").error("%s", error)
        else:
            print(f"hotswap serve: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


def _check_early(arguments: Sequence[str]) -> None:
    """Find what is wrong with the server's own settings before plug-ins import torch, and
    have what the plug-ins log look like the rest.

    Raises: SettingsError; SystemExit for a flag whose value is none.
    """
    from hotswap.logs import configure_logs
    from hotswap.settings import add_core_flags, model_directory, settings_from

    parser = argparse.ArgumentParser(prog="hotswap serve", allow_abbrev=False, add_help=False)
    add_core_flags(parser)
    add_serve_json(parser)
    options, others = parser.parse_known_args(arguments)
    if not {"-h", "--help"}.intersection(others):
        settings = settings_from(options)
        # A flag that is not known here may be the misspelt one: only plug-ins can tell.
        if settings.model is not None or not any(word.startswith("--") for word in others):
            model_directory(settings)
        configure_logs(level=settings.log_level, style=settings.log_format)
