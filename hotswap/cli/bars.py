"""How far long work is, as bars on a terminal: one for each of its phases."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hotswap.cli.output import console_of
from hotswap.cli.terminal import for_terminal

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from hotswap.client import UpdateInProgress
    from hotswap.stream import Progress

__all__ = ["Bars", "bars"]


@contextmanager
def bars(*, shown: bool, begins: str | None = None) -> Iterator[Bars | None]:
    """What to give as ``progress``: bars on stderr; None where nobody looks.

    ``begins`` is what is waited for before the first phase is told of.
    """
    console = console_of(sys.stderr) if shown else None
    if console is None:
        yield None
        return
    from rich.progress import Progress as RichProgress

    from hotswap.cli.bar_columns import columns

    with RichProgress(*columns(), console=console, transient=True) as live:
        told = Bars(live)
        if begins is not None:
            told.show(begins, 0, None)
        yield told


class Bars:
    """Call it with how far the work is. Any thread."""

    def __init__(self, live: RichProgress) -> None:
        self._live = live
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Bars {', '.join(self._tasks) or 'of nothing yet'}>"

    def __call__(self, seen: Progress) -> None:
        """As a stream tells it; a phase of no bytes has no total."""
        self.show(seen.phase, seen.done_bytes, seen.total_bytes or None)

    def tell(self, seen: UpdateInProgress) -> None:
        """As a server tells it."""
        self.show(for_terminal(seen.phase), seen.bytes_done or 0, seen.bytes_total)

    def show(self, phase: str, done: int, total: int | None) -> None:
        """``done`` bytes of ``total`` are through; without a total it only moves."""
        with self._lock:
            if phase not in self._tasks:
                self._hide_waits()
                self._tasks[phase] = self._live.add_task(phase, total=None)
            self._live.update(self._tasks[phase], completed=done, total=total)

    def _hide_waits(self) -> None:
        """What only moved is over once the next phase begins."""
        for task in self._live.tasks:
            if task.total is None:
                self._live.update(task.id, visible=False)
