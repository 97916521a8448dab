"""The ``hotswap`` command.

Nothing here imports torch before the environment is set: OpenMP reads its wait
policy once, and threads that spin after a forward pass slow the copy that follows.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import takewhile
from typing import TYPE_CHECKING

from hotswap._version import __version__
from hotswap.command_line import hide_keys, is_key_flag

if TYPE_CHECKING:
    from hotswap.plugins import Plugins

__all__ = ["main"]

_USAGE_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (2: wrong usage, 1: it could not run)."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        hide_keys()
    except OSError as error:
        print(f"hotswap: {_unsafe_key(error)}", file=sys.stderr)
        return _USAGE_ERROR
    before = list(takewhile(lambda word: word.startswith("-"), arguments))
    command = next(iter(arguments[len(before) :]), None)
    if any(map(is_key_flag, before if command == "serve" else arguments)):
        # argparse would repeat the key in its error.
        print("hotswap: keys are flags of serve, wanted hotswap serve --api-key", file=sys.stderr)
        return _USAGE_ERROR
    if command == "serve":
        return _serve(arguments)
    options = _parser(None).parse_args(arguments)
    if options.command == "plugins":
        return _show_plugins(as_json=options.json)
    _parser(None).print_help()
    return _USAGE_ERROR


def _unsafe_key(error: OSError) -> str:
    return (
        f"a key on the command line would stay readable to every user of this machine ({error}); "
        "give it as HOTSWAP_API_KEY or HOTSWAP_ADMIN_API_KEY"
    )


def _parser(plugins: Plugins | None) -> argparse.ArgumentParser:
    """The parser; ``serve`` has its flags only when the plug-ins are known."""
    parser = argparse.ArgumentParser(
        prog="hotswap",
        description="Replace the weights of a live inference server without a restart.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hotswap {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a checkpoint over HTTP", allow_abbrev=False)
    if plugins is not None:
        from hotswap.settings import add_flags

        add_flags(serve, plugins.options)
    shown = commands.add_parser("plugins", help="list plug-ins, loaded and refused")
    shown.add_argument("--json", action="store_true", help="for programs")
    return parser


def _load_plugins() -> Plugins:
    from hotswap.http.app import core_routes
    from hotswap.plugins import load_plugins
    from hotswap.settings import OPTIONS

    return load_plugins(
        reserved_options=[option.name for option in OPTIONS] + ["model-path"],
        reserved_routes=[route.path for route in core_routes()],
    )


def _serve(arguments: Sequence[str]) -> int:
    from hotswap.settings import SettingsError, settings_from

    try:
        _check_early(arguments)
        plugins = _load_plugins()
        options = _parser(plugins).parse_args(arguments)
        settings = settings_from(options, plugin_options=plugins.options)
    except SettingsError as error:
        print(f"hotswap serve: {error}", file=sys.stderr)
        return _USAGE_ERROR

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
        return 130
    return 0


def _check_early(arguments: Sequence[str]) -> None:
    """Find what is wrong with the server's own settings before plug-ins import torch, and
    have what the plug-ins log look like the rest.

    Raises: SettingsError; SystemExit for a flag whose value is none.
    """
    from hotswap.logs import configure_logs
    from hotswap.settings import add_core_flags, model_directory, settings_from

    parser = argparse.ArgumentParser(prog="hotswap serve", allow_abbrev=False, add_help=False)
    add_core_flags(parser)
    options, others = parser.parse_known_args(arguments)
    if not {"-h", "--help"}.intersection(others):
        settings = settings_from(options)
        model_directory(settings)
        configure_logs(level=settings.log_level, style=settings.log_format)


def _show_plugins(*, as_json: bool) -> int:
    plugins = _load_plugins()
    if as_json:
        shown = {
            "plugins": [asdict(plugin) for plugin in plugins.dists],
            "refused": [asdict(refusal) for refusal in plugins.refusals],
        }
        print(json.dumps(shown, indent=2))
        return 0
    for plugin in plugins.dists:
        print(f"loaded   {plugin.name} {plugin.version} ({plugin.module}): {plugin.brings}")
    for refusal in plugins.refusals:
        print(f"refused  {refusal}")
    if not plugins.dists and not plugins.refusals:
        print("no plug-ins are installed; hotswap-disk brings updates from a directory")
    return 0
