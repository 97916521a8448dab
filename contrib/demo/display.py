"""The demo's screen: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

import anyio
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from contrib.demo.client import Client
from contrib.demo.failed import DemoFailed
from contrib.demo.streams import UNNAMED, Load

__all__ = ["Display"]

REFRESH_S = 0.25
LINE_S = 2.0
RATE_S = 2.0


class Display:
    """Shows a server under load: requests, tokens/s, state, version, last blackout."""

    def __init__(self, console: Console, client: Client, load: Load) -> None:
        self._console = console
        self._client = client
        self._load = load
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._phase = ""
        self._blackout = "none yet"
        self._state = "?"
        self._version = "?"
        self._rate = 0.0
        self._seen = (time.perf_counter(), 0)

    def __repr__(self) -> str:
        return f"<Display {self._phase!r}>"

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def phase(self, text: str) -> None:
        """Say what happens now."""
        self._phase = text
        self._console.print(f"  {text}", highlight=False)

    def blackout(self, longest_gap_ms: float) -> None:
        """Show the longest silence that a stream saw in the last swap."""
        self._blackout = f"{longest_gap_ms:.0f} ms"

    async def run(self) -> None:
        """Refresh until cancelled."""
        last_line = time.perf_counter()
        while True:
            await self._look()
            if self._console.is_terminal:
                self._live.update(self._screen(), refresh=True)
            elif time.perf_counter() - last_line >= LINE_S:
                last_line = time.perf_counter()
                self._console.print(f"    {self._line()}", highlight=False)
            await anyio.sleep(REFRESH_S)

    async def _look(self) -> None:
        try:
            status = await self._client.state()
        except DemoFailed:
            self._state = "no answer"
            return
        self._state = str(status["state"])
        self._version = status["weights"]["weight_version"] or UNNAMED
        now, (then, tokens) = time.perf_counter(), self._seen
        if now - then >= RATE_S:
            self._rate = (self._load.tokens - tokens) / (now - then)
            self._seen = (now, self._load.tokens)

    def _line(self) -> str:
        load = self._load
        return (
            f"{self._state:<9} version {self._version:<4} {self._rate:5.0f} tokens/s  "
            f"requests: {len(load.streams)} open, {load.done} done, {load.aborted} aborted, "
            f"{len(load.lost)} lost  blackout: {self._blackout}"
        )

    def _screen(self) -> Group:
        table = Table(box=None, expand=True, padding=(0, 1))
        table.add_column("stream", width=6)
        table.add_column("tokens", justify="right", width=7)
        table.add_column("done", justify="right", width=5)
        table.add_column("now writing", no_wrap=True, overflow="ellipsis")
        for stream in self._load.streams:
            tail = Text(stream.text.replace("\n", " ")[-200:])
            tail.truncate(max(20, self._console.width - 30), overflow="ellipsis")
            table.add_row(str(stream.number), str(stream.tokens), str(stream.done), tail)
        return Group(Panel(table, title=self._phase), Text(self._line()))
