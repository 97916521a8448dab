"""Columns of a bar that stay empty while nobody knows how much there is to do.

Imported only where something is shown: rich is an extra.
"""

from __future__ import annotations

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

__all__ = ["columns"]


def columns() -> tuple[ProgressColumn, ...]:
    """What each line shows: a phase, its bar, bytes, speed, time spent and time left."""
    return (
        SpinnerColumn(),
        # A server names its phases.
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _OfTotal(DownloadColumn()),
        _OfTotal(TransferSpeedColumn()),
        TimeElapsedColumn(),
        _OfTotal(TimeRemainingColumn()),
    )


class _OfTotal(ProgressColumn):
    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> RenderableType:
        return "" if task.total is None else self._column(task)
