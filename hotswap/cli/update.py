"""``hotswap update``: load a checkpoint into a server, and show how far it is."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hotswap.cli.bars import Bars, bars
from hotswap.cli.codes import ExitCode
from hotswap.cli.outcome import conclude, looked_after
from hotswap.cli.output import fail, retries_shown

if TYPE_CHECKING:
    from hotswap.client import Client, UpdateResult

__all__ = ["run_update"]


def run_update(options: argparse.Namespace) -> ExitCode:
    """Update, and print what it cost."""
    from hotswap.cli.server_address import blocking_client
    from hotswap.errors import HotswapError

    try:
        with retries_shown("update"), blocking_client(options) as client:
            with bars(shown=not options.json, begins="waiting for the server") as told:
                result = _update(client, options, told)
            now, url = looked_after(client), client.url
    except (HotswapError, ValueError, KeyboardInterrupt) as error:
        return fail("update", error, as_json=options.json)
    labelled = options.weight_version is not None
    return conclude(result, now, url=url, labelled=labelled, as_json=options.json)


def _update(client: Client, options: argparse.Namespace, told: Bars | None) -> UpdateResult:
    """Raises: what the client does."""
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
