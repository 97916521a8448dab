"""``hotswap watch``: live on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from hotswap.cli.board import Board, PastUpdate
from hotswap.cli.codes import ExitCode, exit_code_of
from hotswap.cli.output import (
    OutputLost,
    console_of,
    fail,
    print_json,
    print_text,
    retries_unsaid,
)
from hotswap.cli.state import state_lines, state_object
from hotswap.cli.terminal import for_terminal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

    from hotswap.client import AsyncClient
    from hotswap.errors import HotswapError

__all__ = ["run_watch", "screen"]


def run_watch(options: argparse.Namespace) -> ExitCode:
    """Until Ctrl-C, or for ``--times`` looks; then the code of the last one."""
    import anyio

    try:
        return anyio.run(_watch, options)
    except KeyboardInterrupt:
        return ExitCode.DONE
    except ValueError as error:
        return fail("watch", error, as_json=options.json)
    except BaseExceptionGroup as group:
        # Of the task group: what was printed to has gone, in one task of it.
        lost, others = group.split(OutputLost)
        if lost is None or others is not None:
            raise
        raise _first_of(lost) from None


def _first_of(group: BaseExceptionGroup[OutputLost]) -> OutputLost:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


async def _watch(options: argparse.Namespace) -> ExitCode:
    import anyio

    from hotswap.cli.server_address import async_client

    board = Board()
    console = None if options.json else console_of(sys.stdout)
    with ExitStack() as shown:
        shown.enter_context(retries_unsaid())
        live = None if console is None else shown.enter_context(_live(console))
        report = Reporter(board, live=live, as_json=options.json)
        async with (
            async_client(options) as client,
            async_client(options) as listener,
            anyio.create_task_group() as group,
        ):
            group.start_soon(partial(_listen, listener, report))
            trouble = await _look(client, report, options)
            group.cancel_scope.cancel()
    return ExitCode.DONE if trouble is None else exit_code_of(trouble)


async def _look(
    client: AsyncClient, report: Reporter, options: argparse.Namespace
) -> HotswapError | None:
    """What was wrong with the last look, if anything."""
    import anyio

    from hotswap.errors import HotswapError

    looks = 0
    trouble: HotswapError | None = None
    while options.times is None or looks < options.times:
        if looks:
            await anyio.sleep(options.every_s)
        looks += 1
        try:
            report.board.see(await client.state(within_s=max(options.every_s, 1.0)))
            trouble = None
        except HotswapError as error:
            trouble = error
            report.board.miss(str(error))
        report.looked()
    return trouble


async def _listen(client: AsyncClient, report: Reporter) -> None:
    """Hear of updates, those that the server remembers too, for as long as it can be heard."""
    import anyio

    from hotswap.errors import HotswapError

    after = "0"
    while True:
        try:
            async with client.events(after=after) as events:
                async for event in events:
                    after = events.last_id or after
                    if (ended := report.board.hear(event)) is not None:
                        report.heard(ended)
        except HotswapError:
            # The looks tell of it: a server without events, or one that is away.
            if client.kind == "sglang":
                return
        await anyio.sleep(1.0)


class Reporter:
    """Shows a board: on a live screen, as JSON lines, or as lines for people."""

    def __init__(self, board: Board, *, live: Live | None, as_json: bool) -> None:
        self.board = board
        self._live = live
        self._as_json = as_json
        self._last = ""

    def __repr__(self) -> str:
        return f"<Reporter of {self.board!r}>"

    def looked(self) -> None:
        """Show what a look found, if it is new."""
        line = self.board.line()
        if self._live is not None:
            self._live.update(screen(self.board), refresh=True)
        elif line != self._last and self._as_json:
            seen = None if self.board.seen is None else state_object(self.board.seen)
            print_json({"trouble": self.board.trouble, "state": seen})
        elif line != self._last:
            print_text(line)
        self._last = line

    def heard(self, ended: PastUpdate) -> None:
        """Show how an update ended."""
        if self._live is not None:
            self._live.update(screen(self.board), refresh=True)
        elif self._as_json:
            print_json({"update": asdict(ended)})
        else:
            print_text(str(ended))


def _live(console: Console) -> Live:
    from rich.live import Live

    return Live(console=console, auto_refresh=False)


def screen(board: Board) -> RenderableType:
    """The live view: the server on top, its last updates below."""
    from rich.console import Group
    from rich.table import Table

    if board.seen is None:
        return _cell(board.line())
    server = Table.grid(padding=(0, 2))
    for name, value in state_lines(board.seen):
        server.add_row(name, _cell(value))
    if board.trouble is not None:
        server.add_row("no answer", _cell(board.trouble))
    updates = Table(title="last updates", title_justify="left", box=None, padding=(0, 2))
    for heading in ("update", "outcome", "version", "staged", "paused"):
        updates.add_column(heading)
    updates.add_column("source, or why not", no_wrap=True, overflow="ellipsis")
    for update in reversed(board.updates):
        updates.add_row(
            str(update.number),
            _cell(update.outcome),
            _cell(update.version or "(no name)"),
            _ms(update.staged_ms),
            _ms(update.paused_ms),
            _cell(update.reason or update.source),
        )
    return Group(server, "", updates)


def _cell(text: str) -> Text:
    """``text`` as it is: none of it is markup."""
    from rich.text import Text

    return Text(for_terminal(text))


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
