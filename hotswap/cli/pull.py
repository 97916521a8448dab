"""``hotswap pull`` and ``hotswap materialize``: a local checkpoint, without a server."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hotswap.cli.bars import bars
from hotswap.cli.codes import ExitCode
from hotswap.cli.output import fail, print_json, print_text

if TYPE_CHECKING:
    from hotswap.stream import PreRead, PullReport

__all__ = ["run_materialize", "run_pull"]


def run_pull(options: argparse.Namespace) -> ExitCode:
    """Pull, and print what it cost."""
    from hotswap.errors import HotswapError
    from hotswap.stream import Keep, pull
    from hotswap.stream.place import absolute_place

    try:
        pre_read = _pre_read(options.custom_pull_weights_pre_read_hook)
        with bars(shown=not options.json) as progress:
            report = pull(
                # Hooks, states and messages name the place wherever they are read.
                Path(os.path.abspath(options.local)),
                absolute_place(options.source),
                options.target,
                base_dir=Path(os.path.abspath(options.base)),
                threads=options.threads,
                lock_timeout_s=options.lock_timeout_s,
                pre_read=pre_read,
                progress=progress,
                keep=Keep(options.local_checkpoint),
                check=options.check,
            )
    except (HotswapError, ValueError, KeyboardInterrupt) as error:
        return fail("pull", error, as_json=options.json)
    return _show(report, options)


def run_materialize(options: argparse.Namespace) -> ExitCode:
    """Write a log into the files that it is on, and print what it cost."""
    from hotswap.errors import HotswapError
    from hotswap.stream import materialize

    try:
        with bars(shown=not options.json) as progress:
            report = materialize(
                Path(options.local),
                threads=options.threads,
                lock_timeout_s=options.lock_timeout_s,
                progress=progress,
            )
    except (HotswapError, ValueError, KeyboardInterrupt) as error:
        return fail("materialize", error, as_json=options.json)
    return _show(report, options)


def _show(report: PullReport, options: argparse.Namespace) -> ExitCode:
    if options.json:
        print_json({**asdict(report), "local": os.path.abspath(options.local)})
    else:
        print_text(f"{options.local}: {report}")
    return ExitCode.DONE


def _pre_read(path: str | None) -> PreRead | None:
    """The hooks that a server would call, by the same settings.

    Raises: ValueError for a hook that cannot be imported, or an option that does not parse.
    """
    from hotswap.cli.plugins import load_installed
    from hotswap.options import option_values
    from hotswap.plugin_hooks import with_options
    from hotswap.pre_read import OPERATOR_VARIABLE, operator_hook, pull_pre_read

    plugins = load_installed()
    path = path or os.environ.get(OPERATOR_VARIABLE) or None
    own = () if path is None else (operator_hook(path),)
    values = option_values(plugins.options) if plugins.pre_read else {}
    return pull_pre_read((*own, *with_options(plugins.pre_read, values)))
