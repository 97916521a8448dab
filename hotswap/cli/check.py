"""``hotswap check``: is this directory a loadable checkpoint, and why not?"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from hotswap.cli.codes import ExitCode
from hotswap.cli.output import fail, print_json, print_text

__all__ = ["run_check"]


def run_check(options: argparse.Namespace) -> ExitCode:
    """Print the answer: code 0 for yes, 1 for no."""
    from hotswap.engine.loadable import check_checkpoint
    from hotswap.errors import UpdateRejected

    try:
        found = check_checkpoint(options.directory, model=options.model)
    except UpdateRejected as error:
        return fail("check", error, as_json=options.json)
    if options.json:
        print_json({"loadable": True, **asdict(found)})
    else:
        print_text(f"{options.directory}: {found}")
    return ExitCode.DONE
