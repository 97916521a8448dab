"""Engines with one fault each, and the one test of the suite that has to find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hotswap.engine import EmbeddedEngine
from hotswap.testing.module_engine import ModuleEngine

__all__ = ["BROKEN", "Kind", "PlantedEngine", "broken"]

Kind = type[ModuleEngine] | type[EmbeddedEngine]
Broken = TypeVar("Broken", bound=Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedEngine:
    """``kind`` is broken; ``test`` fails for it, and its message has ``says`` in it."""

    kind: Kind
    test: str
    says: str


BROKEN: dict[str, PlantedEngine] = {}
"""What is wrong -> the engine. The modules ``broken_*`` fill it."""


def broken(what: str, test: str, *, says: str) -> Callable[[Broken], Broken]:
    """Plant an engine that is broken."""

    def note(kind: Broken) -> Broken:
        BROKEN[what] = PlantedEngine(kind=kind, test=test, says=says)
        return kind

    return note
