"""``hotswap plugins``: what is installed, loaded or refused."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from hotswap.cli.codes import ExitCode
from hotswap.cli.output import print_json, print_text

if TYPE_CHECKING:
    from hotswap.plugins import Plugins

__all__ = ["load_installed", "run_plugins"]


def load_installed() -> Plugins:
    """Every installed plug-in, none of which may take a flag of the server's own."""
    from hotswap.http.app import core_routes
    from hotswap.plugins import load_plugins
    from hotswap.settings import OPTIONS

    return load_plugins(
        reserved_options=[option.name for option in OPTIONS] + ["model-path", "json"],
        reserved_routes=[route.path for route in core_routes()],
    )


def run_plugins(options: argparse.Namespace) -> ExitCode:
    """List them."""
    plugins = load_installed()
    if options.json:
        shown = {
            "plugins": [asdict(plugin) for plugin in plugins.dists],
            "refused": [asdict(refusal) for refusal in plugins.refusals],
        }
        print_json(shown)
        return ExitCode.DONE
    for plugin in plugins.dists:
        print_text(f"loaded   {plugin.name} {plugin.version} ({plugin.module}): {plugin.brings}")
    for refusal in plugins.refusals:
        print_text(f"refused  {refusal}")
    if not plugins.dists and not plugins.refusals:
        print_text("no plug-ins are installed; hotswap-disk brings updates from a directory")
    return ExitCode.DONE
