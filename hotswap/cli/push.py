"""``hotswap push``: bring the tensors of a checkpoint here to a server, and show how far it is."""

from __future__ import annotations

import argparse
from itertools import chain
from typing import TYPE_CHECKING

from hotswap.cli.bars import Bars, bars
from hotswap.cli.codes import ExitCode
from hotswap.cli.outcome import conclude, looked_after
from hotswap.cli.output import fail, retries_shown

if TYPE_CHECKING:
    from hotswap.client import Client, UpdateResult

__all__ = ["run_push"]


def run_push(options: argparse.Namespace) -> ExitCode:
    """Push, and print what it cost."""
    from hotswap.cli.server_address import blocking_client
    from hotswap.errors import HotswapError

    try:
        with retries_shown("push"), blocking_client(options) as client:
            with bars(shown=not options.json, begins="waiting for the server") as told:
                result = _push(client, options, told)
            now, url = looked_after(client), client.url
    except (HotswapError, OSError, ValueError, KeyboardInterrupt) as error:
        return fail("push", error, as_json=options.json)
    labelled = options.weight_version is not None
    return conclude(result, now, url=url, labelled=labelled, as_json=options.json)


def _push(client: Client, options: argparse.Namespace, told: Bars | None) -> UpdateResult:
    """Raises: what the client does; UpdateRejected for a directory that is no checkpoint."""
    from hotswap.pulls.logged import held_checkpoint

    with held_checkpoint(options.directory) as checkpoint:
        return client.push(
            chain.from_iterable(checkpoint.buckets()),
            version=options.weight_version,
            token_step=options.token_step,
            pause_mode=options.pause_mode,
            flush_cache=options.flush_cache,
            scope=options.scope,
            transport=options.transport.replace("-", "_"),
            within_s=options.within_s,
            progress=None if told is None else told.tell,
        )
