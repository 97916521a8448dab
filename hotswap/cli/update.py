"""``hotswap update``: load a checkpoint into a server, and show how far it is."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hotswap.cli.bars import Bars, bars
from hotswap.cli.codes import ExitCode
from hotswap.cli.output import fail, print_json, print_text, retries_shown
from hotswap.counted import counted

if TYPE_CHECKING:
    from hotswap.client import UpdateResult

__all__ = ["line_of", "print_result", "run_update"]


def run_update(options: argparse.Namespace) -> ExitCode:
    """Update, and print what it cost."""
    from hotswap.errors import HotswapError

    try:
        with (
            retries_shown("update"),
            bars(shown=not options.json, begins="waiting for the server") as told,
        ):
            result = _update(options, told)
    except (HotswapError, ValueError, KeyboardInterrupt) as error:
        return fail("update", error, as_json=options.json)
    print_result(result, as_json=options.json)
    return ExitCode.DONE


def print_result(result: UpdateResult, *, as_json: bool) -> None:
    """Print what an update or a push has done: one line, or an object of all that was told."""
    if as_json:
        shown = asdict(result)
        del shown["shown"]
        print_json(shown)
    else:
        print_text(line_of(result))


def _update(options: argparse.Namespace, told: Bars | None) -> UpdateResult:
    """Raises: what the client does; ValueError for an address that is none."""
    from hotswap.cli.server_address import blocking_client

    with blocking_client(options) as client:
        return client.update(
            _source(options.source),
            strategy=options.strategy,
            version=options.weight_version,
            token_step=options.token_step,
            pause_mode=options.pause_mode,
            flush_cache=options.flush_cache,
            fenced=options.fenced,
            within_s=options.within_s,
            progress=None if told is None else told.tell,
        )


def _source(given: str) -> str:
    """What is here goes out as its absolute path: the server runs elsewhere."""
    return str(Path(given).resolve()) if os.path.exists(given) else given


def line_of(result: UpdateResult) -> str:
    """What an update did, and cost, for people."""
    name = result.weight_version or "(no name)"
    if result.confirmed_by == "state":
        return f"version {name} is live; the reply was lost, so its costs are not known"
    costs = [
        f"{label} {value:.1f} ms"
        for label, value in (("staged", result.staged_ms), ("paused", result.paused_ms))
        if value is not None
    ]
    if result.tensors is not None:
        costs.insert(0, f"{counted(result.tensors, 'tensor')}, {(result.bytes or 0) / 1e6:.1f} MB")
    if result.mode == "sparse":
        costs.insert(1, f"{result.elements_moved} elements changed")
    return f"version {name} is live" + (f": {', '.join(costs)}" if costs else "")
