"""Progress of a pull or a verification, as bars on a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hotswap.cli.output import console_of

if TYPE_CHECKING:
    from rich.progress import TaskID

    from hotswap.stream import Progress

__all__ = ["bars"]


@contextmanager
def bars(*, shown: bool) -> Iterator[Callable[[Progress], None] | None]:
    """What to give as ``progress``: a bar for each phase on stderr; None where nobody looks."""
    console = console_of(sys.stderr) if shown else None
    if console is None:
        yield None
        return
    from rich import progress

    columns: list[Any] = [
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    ]
    with progress.Progress(*columns, console=console, transient=True) as live:
        tasks: dict[str, TaskID] = {}
        lock = threading.Lock()

        def show(seen: Progress) -> None:
            with lock:
                if seen.phase not in tasks:
                    tasks[seen.phase] = live.add_task(seen.phase)
                live.update(tasks[seen.phase], completed=seen.done_bytes, total=seen.total_bytes)

        yield show
