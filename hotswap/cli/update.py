"""``hotswap update``: load a checkpoint directory into a server, and show how far it is."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotswap.cli.codes import ExitCode
from hotswap.cli.output import console_of, fail, print_json, print_text, retries_shown

if TYPE_CHECKING:
    from hotswap.client import AsyncClient, UpdateResult

__all__ = ["run_update"]

_LOOK_S = 0.25


def run_update(options: argparse.Namespace) -> ExitCode:
    """Update, and print what it cost."""
    import anyio

    from hotswap.errors import HotswapError

    try:
        with retries_shown("update"):
            result = anyio.run(_update, options)
    except (HotswapError, ValueError, KeyboardInterrupt) as error:
        return fail("update", error, as_json=options.json)
    if options.json:
        shown = asdict(result)
        del shown["shown"]
        print_json(shown)
    else:
        print_text(_line(result))
    return ExitCode.DONE


async def _update(options: argparse.Namespace) -> UpdateResult:
    """Raises: what the client does; ValueError for an address that is none."""
    import anyio

    from hotswap.cli.server_address import async_client

    outcome: list[UpdateResult | BaseException] = []
    async with (
        async_client(options) as client,
        async_client(options) as onlooker,
        anyio.create_task_group() as group,
    ):
        group.start_soon(partial(_show, onlooker, options))
        try:
            outcome.append(await _begin(client, options))
        except Exception as error:
            # Raised outside the group, so that it arrives as itself and not in a group.
            outcome.append(error)
        group.cancel_scope.cancel()
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


async def _begin(client: AsyncClient, options: argparse.Namespace) -> UpdateResult:
    return await client.update(
        _source(options),
        version=options.weight_version,
        token_step=options.token_step,
        pause_mode=options.pause_mode,
        flush_cache=options.flush_cache,
        fenced=options.fenced,
        within_s=options.within_s,
    )


def _source(options: argparse.Namespace) -> str:
    """A directory that is here goes out as its absolute path: the server runs elsewhere."""
    here = Path(options.source)
    return str(here.resolve()) if here.is_dir() else str(options.source)


async def _show(client: AsyncClient, options: argparse.Namespace) -> None:
    """A bar on a terminal; nothing elsewhere."""
    import anyio

    console = None if options.json else console_of(sys.stderr)
    if console is None:
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("sending", total=None)
        while True:
            bar.update(task, **await _progress(client, options))
            await anyio.sleep(_LOOK_S)


async def _progress(client: AsyncClient, options: argparse.Namespace) -> dict[str, Any]:
    """What the server says of the update now: for ``Progress.update``."""
    from hotswap.errors import HotswapError

    try:
        seen = await client.state(within_s=1.0)
    except HotswapError:
        return {"description": "no answer"}
    mine = [update for update in seen.updates if update.source == _source(options)]
    told = f"({seen.state or seen.server}, {seen.running or 0} requests run)"
    if not mine:
        return {"description": f"asking {told}"}
    return {
        "description": f"{mine[0]} {told}",
        "total": mine[0].bytes_total,
        "completed": mine[0].bytes_done or 0,
    }


def _line(result: UpdateResult) -> str:
    name = result.weight_version or "(no name)"
    if result.confirmed_by == "state":
        return f"version {name} is live; the reply was lost, so its costs are not known"
    costs = [
        f"{label} {value:.1f} ms"
        for label, value in (("staged", result.staged_ms), ("paused", result.paused_ms))
        if value is not None
    ]
    if result.tensors is not None:
        costs.insert(0, f"{result.tensors} tensors, {(result.bytes or 0) / 1e6:.1f} MB")
    return f"version {name} is live" + (f": {', '.join(costs)}" if costs else "")
