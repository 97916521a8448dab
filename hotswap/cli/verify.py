"""``hotswap verify``: every byte against every checksum, of a source or a local checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hotswap.cli.bars import bars
from hotswap.cli.codes import ExitCode
from hotswap.cli.output import complain, fail, print_json, print_text
from hotswap.cli.places import refuse_no_source
from hotswap.counted import counted

if TYPE_CHECKING:
    from hotswap.stream import Fault, Verified

__all__ = ["run_verify"]

_FEW = 3


def run_verify(options: argparse.Namespace) -> ExitCode:
    """Print what is wrong; code 0 for nothing, 3 when all of it may only be late."""
    from hotswap.errors import HotswapError

    try:
        found = _verified(options)
    except (HotswapError, OSError, ValueError, KeyboardInterrupt) as error:
        return fail("verify", error, as_json=options.json)
    if options.json:
        print_json({"whole": not found.faults, **asdict(found)})
    else:
        _show(found, every=options.verbose)
    if not found.faults:
        return ExitCode.DONE
    return ExitCode.NO_ANSWER if found.retryable else ExitCode.FAILED


def _verified(options: argparse.Namespace) -> Verified:
    from hotswap.stream.place import place_of
    from hotswap.stream.survey_local import is_local
    from hotswap.stream.verify_local import verify_local
    from hotswap.stream.verify_source import verify_source

    place, threads = place_of(options.directory), options.threads
    with bars(shown=not options.json) as progress:
        if isinstance(place, Path) and is_local(place):
            return verify_local(
                place,
                threads=threads,
                lock_timeout_s=options.lock_timeout_s,
                progress=progress,
            )
        refuse_no_source(options.directory)
        base = None if options.base is None else Path(options.base)
        return verify_source(place, base_dir=base, threads=threads, progress=progress)


def _show(found: Verified, *, every: bool) -> None:
    for line in _fault_lines(found.faults, at_most=len(found.faults) if every else _FEW):
        complain("verify", line)
    versions = ", ".join(map(str, found.versions)) or "none"
    named = "version" if len(found.versions) == 1 else "versions"
    counts = f"{counted(found.checks, 'checksum')} over {found.checked_bytes / 1e6:.1f} MB"
    ended = "all hold" if not found.faults else counted(len(found.faults), "fault")
    note = "" if found.note is None else f"; {found.note}"
    print_text(f"{found.path}: {named} {versions}: {counts}: {ended}{note}")


def _fault_lines(faults: Sequence[Fault], *, at_most: int) -> Iterator[str]:
    """Each place's faults of a kind, ``at_most`` of them in full: one damaged file is one
    fault for each tensor in it."""
    by_kind: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        by_kind.setdefault((fault.where, fault.kind), []).append(fault)
    for (where, kind), alike in by_kind.items():
        yield from map(str, alike[:at_most])
        if len(alike) > at_most:
            yield f"{where}: {kind}: {len(alike) - at_most} more like these; --verbose lists them"
