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
        told = _of_a_stream(Path(options.directory), str(error))
        return fail("check", error if told is None else UpdateRejected(told), as_json=options.json)
    if options.json:
        print_json({"loadable": True, **asdict(found)})
    else:
        print_text(f"{options.directory}: {found}")
    return ExitCode.DONE


def _of_a_stream(directory: Path, trouble: str) -> str | None:
    """What to say of a directory that belongs to a stream; None for any other."""
    from hotswap.errors import UpdateRejected
    from hotswap.stream.layout import published_versions, read_index
    from hotswap.stream.survey_local import is_local
    from hotswap.weights.folder import Folder

    try:
        if published := published_versions(directory):
            return (
                f"{directory} is no checkpoint but a source of published versions, up to "
                f"{published[-1]}: hotswap inspect lists them, hotswap pull makes one a checkpoint"
            )
        if is_local(directory):
            return f"{trouble}; pulls keep this directory: hotswap inspect says what it holds"
        with Folder.open(directory) as folder:
            if read_index(folder, version=None, names=None) is not None:
                return (
                    f"{directory} is no checkpoint but one delta of a stream: hotswap pull makes a "
                    "checkpoint of it and what it builds on"
                )
    except UpdateRejected:
        return None
    return None
