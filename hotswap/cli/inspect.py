"""``hotswap inspect``: what a directory of published versions, or a local checkpoint, holds."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hotswap.cli.bars import bars
from hotswap.cli.codes import ExitCode
from hotswap.cli.output import fail, print_json, print_lines
from hotswap.cli.places import refuse_no_source

if TYPE_CHECKING:
    from hotswap.stream import LocalSurvey, SourceSurvey, VersionSurvey

__all__ = ["run_inspect"]

_COLUMNS = ("version", "kind", "on", "tensors", "files", "size", "density", "chain", "trouble")


def run_inspect(options: argparse.Namespace) -> ExitCode:
    """Print a table, or the same as JSON; code 1 when something cannot be pulled or read."""
    from hotswap.errors import HotswapError
    from hotswap.stream.place import place_of
    from hotswap.stream.survey import survey_source
    from hotswap.stream.survey_local import is_local, survey_local

    try:
        place = place_of(options.directory)
        if isinstance(place, Path) and is_local(place):
            return _show_local(survey_local(place), as_json=options.json)
        refuse_no_source(options.directory)
        base = None if options.base is None else Path(options.base)
        with bars(shown=not options.json) as progress:
            source = survey_source(place, base_dir=base, density=options.density, progress=progress)
        return _show_source(source, as_json=options.json)
    except (HotswapError, OSError, ValueError, KeyboardInterrupt) as error:
        return fail("inspect", error, as_json=options.json)


def _show_local(local: LocalSurvey, *, as_json: bool) -> ExitCode:
    if as_json:
        print_json({"kind": "local", **asdict(local)})
    else:
        print_lines(f"{name:<10} {value}" for name, value in _local_lines(local))
    return ExitCode.DONE if local.trouble is None else ExitCode.FAILED


def _local_lines(local: LocalSurvey) -> list[tuple[str, str]]:
    begun = "the base" if local.base_version == 0 else f"version {local.base_version}"
    rows = {
        "local": local.local,
        "version": local.version,
        "files at": local.plain_version if local.log_versions else None,
        "log": _log(local) if local.log_versions else None,
        "began with": begun if local.version is not None else None,
        "base": local.base_checkpoint_dir,
        "source": local.checkpoint_source_dir,
        "tensors": local.tensors or None,
        "files": local.files or None,
        "size": _size(local.size_bytes) if local.size_bytes else None,
        "unfinished": local.unfinished,
        "trouble": local.trouble,
    }
    return [(name, str(value)) for name, value in rows.items() if value is not None]


def _log(local: LocalSurvey) -> str:
    versions = ", ".join(map(str, local.log_versions))
    return f"{versions}: {_size(local.log_bytes)}, applied by hotswap's readers"


def _show_source(source: SourceSurvey, *, as_json: bool) -> ExitCode:
    if as_json:
        print_json({"kind": "source", **asdict(source)})
    else:
        print_lines(_table(source))
    # A torn aggregate is skipped, and is nothing that a pull fails at.
    wrong = any(one.trouble is not None or one.missing is not None for one in source.versions)
    return ExitCode.FAILED if wrong else ExitCode.DONE


def _table(source: SourceSurvey) -> list[str]:
    """Columns as wide as what is in them: the same on a terminal, in a pipe and in a log."""
    rows = [_COLUMNS, *(_row(one, str(one.version)) for one in source.versions)]
    if source.aggregate is not None:
        rows.append(_row(source.aggregate, f"aggregate {source.aggregate.version or ''}".strip()))
    widths = [max(len(row[at]) for row in rows) for at in range(len(_COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return lines if source.versions else [*lines, f"no version is published in {source.source}"]


def _row(one: VersionSurvey, name: str) -> tuple[str, ...]:
    return (
        name,
        one.kind or "-",
        "-" if one.base_version is None else str(one.base_version),
        str(one.tensors),
        str(one.files),
        _size(one.size_bytes),
        "-" if one.density is None else f"{100 * one.density:.3g}%",
        _chain(one),
        one.trouble or "",
    )


def _chain(one: VersionSurvey) -> str:
    """Where it begins, and how many versions are applied on that."""
    if one.missing is not None:
        return f"{one.missing} is missing"
    if not one.chain:
        return "-"
    begun = "base" if one.chain[0] == 0 else str(one.chain[0])
    return f"{begun} + {len(one.chain) - 1}"


def _size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size_bytes < 999.5:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} GB"
