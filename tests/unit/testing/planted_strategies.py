"""Load strategies with one fault each, and the one test of the suite that has to find it."""

from __future__ import annotations

from collections.abc import Callable

from hotswap.seams import LoadStrategy
from tests.unit.testing.file_strategy import FileStage, FileStrategy
from tests.unit.testing.planting import Planted

__all__ = ["BROKEN", "LEFT_BEHIND", "VICTIM", "broken", "broken_stage"]

BROKEN: dict[str, Planted[LoadStrategy]] = {}
"""What is wrong -> the strategy. The modules ``broken_*`` fill it."""

LEFT_BEHIND: list[Callable[[], None]] = []
"""What gives back, once a test is over, that which a strategy has kept on purpose."""

VICTIM = "layers.1.float32"
"""The tensor that is hurt."""


def broken(
    what: str, test: str, *, says: str
) -> Callable[[type[FileStrategy]], type[FileStrategy]]:
    """Plant a strategy that is broken."""

    def note(kind: type[FileStrategy]) -> type[FileStrategy]:
        BROKEN[what] = Planted(make=kind, test=test, says=says)
        return kind

    return note


def broken_stage(
    what: str, test: str, *, says: str
) -> Callable[[type[FileStage]], type[FileStage]]:
    """Plant a strategy whose stage is broken."""

    def note(kind: type[FileStage]) -> type[FileStage]:
        class Strategy(FileStrategy):
            stage = kind

        BROKEN[what] = Planted(make=Strategy, test=test, says=says)
        return kind

    return note
