"""``hotswap check``: is this directory a loadable checkpoint, and why not?"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

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
        hint = _stream_hint(Path(options.directory))
        told = error if hint is None else UpdateRejected(f"{error}; {hint}")
        return fail("check", told, as_json=options.json)
    if options.json:
        print_json({"loadable": True, **asdict(found)})
    else:
        print_text(f"{options.directory}: {found}")
    return ExitCode.DONE


def _stream_hint(directory: Path) -> str | None:
    """What to do with a directory that belongs to a stream; None for any other."""
    from hotswap.errors import UpdateRejected
    from hotswap.stream.layout import published_versions, read_index
    from hotswap.stream.survey_local import is_local
    from hotswap.weights.folder import Folder

    try:
        if published := published_versions(directory):
            return (
                f"it is no checkpoint but a source of published versions, up to {published[-1]}: "
                "hotswap inspect lists them, hotswap pull makes a checkpoint of one"
            )
        if is_local(directory):
            return "it is a local checkpoint of pulls: hotswap inspect says what it holds"
        with Folder.open(directory) as folder:
            if read_index(folder, version=None, names=None) is not None:
                return "it is a delta: hotswap pull makes a checkpoint of it and what it builds on"
    except UpdateRejected:
        return None
    return None
