"""``hotswap commit``: what a server that follows a stream has pulled becomes live."""

from __future__ import annotations

import argparse

from hotswap.cli.bars import bars
from hotswap.cli.codes import ExitCode
from hotswap.cli.outcome import conclude, looked_after
from hotswap.cli.output import fail, retries_shown

__all__ = ["run_commit"]


def run_commit(options: argparse.Namespace) -> ExitCode:
    """Commit, and print what it cost."""
    from hotswap.cli.server_address import blocking_client
    from hotswap.errors import HotswapError

    try:
        with retries_shown("commit"), blocking_client(options) as client:
            with bars(shown=not options.json, begins="waiting for the server"):
                result = client.commit(
                    options.target,
                    wait_s=options.wait or 0.0,
                    label=options.weight_version,
                    token_step=options.token_step,
                    pause_mode=options.pause_mode,
                    flush_cache=options.flush_cache,
                    within_s=options.within_s,
                )
            now, url = looked_after(client), client.url
    except (HotswapError, ValueError, KeyboardInterrupt) as error:
        return fail("commit", error, as_json=options.json)
    return conclude(result, now, url=url, labelled=True, as_json=options.json)
