"""What the shared fixture ``served`` gives, and the servers that it may be on.

Rule: a fault may depend on anything that a server can be told about updates and pauses.
What there is to be told is asked of the settings, so that a choice that is added later
is put through every fault of the matrix. Half of the flavours, in which every two
choices meet, are for ``make test``; the others are for ``make test-long``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from hotswap.settings import CHOICES
from hotswap.testing.server import ServerProcess
from tests.process.http_client import Client

__all__ = [
    "FLAVOURS",
    "GR_SERVERS",
    "Flavour",
    "Served",
    "by_turns",
    "in_every_flavour",
    "of_every_flavour",
    "server_number",
    "with_pairs",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """What a server is told."""

    load_mode: str
    dialect: str
    while_paused: str

    def __str__(self) -> str:
        return f"{self.load_mode}-{self.dialect}-{self.while_paused}"

    @property
    def settings(self) -> dict[str, Any]:
        """For a server in this process."""
        return {name: getattr(self, name) for name in ("load_mode", "dialect", "while_paused")}

    @property
    def flags(self) -> list[str]:
        """For one in a process of its own."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in self.settings.items()]


# "auto" is one of the others.
_PAUSED = [choice for choice in CHOICES["while_paused"] if choice != "auto"]

# pytest takes a server for the same one when its parameter is the same object.
FLAVOURS: Sequence[Flavour] = [
    Flavour(load_mode=load_mode, dialect=dialect, while_paused=while_paused)
    for dialect, load_mode, while_paused in itertools.product(
        CHOICES["dialect"], CHOICES["load_mode"], _PAUSED
    )
]
"""Everything that a server can be told, in every combination."""


def _is_quick(flavour: Flavour) -> bool:
    places = (
        CHOICES["dialect"].index(flavour.dialect),
        CHOICES["load_mode"].index(flavour.load_mode),
        _PAUSED.index(flavour.while_paused),
    )
    return sum(places) % 2 == 0


def _param(flavour: Flavour, *values: object, is_long: bool = False, suffix: str = "") -> Any:
    marks = [pytest.mark.long] if is_long or not _is_quick(flavour) else []
    return pytest.param(flavour, *values, id=f"{flavour}{suffix}", marks=marks)


_QUICK_GR = [flavour for flavour in FLAVOURS if flavour.dialect == "gr" and _is_quick(flavour)]

GR_SERVERS = list(map(_param, _QUICK_GR))
"""The servers that every test of ``served`` runs on: one of each load mode."""

in_every_flavour = pytest.mark.parametrize("server", list(map(_param, FLAVOURS)), indirect=True)
"""Runs a test of ``served`` on a server of every flavour."""


def of_every_flavour(
    names: str = "", rows: Sequence[tuple[object, ...]] = ((),)
) -> pytest.MarkDecorator:
    """Gives a test ``flavour`` and the arguments ``names``: every one, with each of ``rows``.

    Of ``rows`` only the first is for ``make test`` in every quick flavour, and the others
    in one of them each, by turns.
    """
    quick = [flavour for flavour in FLAVOURS if _is_quick(flavour)]
    return pytest.mark.parametrize(
        f"flavour, {names}" if names else "flavour",
        [
            _param(
                flavour,
                *row,
                is_long=bool(number) and quick[number % len(quick)] != flavour,
                suffix="".join(f"-{value}" for value in row),
            )
            for flavour in FLAVOURS
            for number, row in enumerate(rows)
        ],
    )


def with_pairs(
    names: str, pairs: Sequence[tuple[str, str | None]], *, routes: Sequence[str]
) -> pytest.MarkDecorator:
    """Runs a test of ``served`` with ``pairs`` over every one of ``routes`` in every flavour.

    ``names`` are those of its two arguments beside ``route``. The first route meets every pair.
    Of the pairs of two different ones ``make test`` runs none in SGLang's dialect, which
    changes words and not orders, and each on a server of one load mode in the other, by turns.
    The other routes share the first one's orders: they meet each first of the pairs beside
    one of its seconds, by turns, in ``make test-long``.
    """
    first, *others = routes
    return pytest.mark.parametrize(
        f"server, route, {names}",
        [
            _param(flavour, route, *pair, is_long=is_long, suffix=f"-{route}-{pair[0]}-{pair[1]}")
            for turn, flavour in enumerate(FLAVOURS)
            for route, pair, is_long in [
                *((first, pair, _waits(flavour, at, pair)) for at, pair in enumerate(pairs)),
                *(
                    (route, pair, True)
                    for at, route in enumerate(others)
                    for pair in _one_of_each(pairs, turn + at)
                ),
            ]
        ],
        indirect=["server"],
        # Beside arguments that are no fixtures its scope would be that of a function.
        scope="session",
    )


def _waits(flavour: Flavour, number: int, pair: tuple[str, str | None]) -> bool:
    return pair[1] not in (None, pair[0]) and not _is_its_turn(flavour, number)


def _one_of_each(
    pairs: Sequence[tuple[str, str | None]], turn: int
) -> Iterator[tuple[str, str | None]]:
    """A pair for each of the firsts; of all seconds, as the firsts and turns go on."""
    for at, first in enumerate(dict.fromkeys(one for one, _ in pairs)):
        of_it = [pair for pair in pairs if pair[0] == first]
        yield of_it[(turn + at) % len(of_it)]


def by_turns(
    names: str, rows: Sequence[tuple[object, ...]], *, is_long: Callable[..., bool]
) -> pytest.MarkDecorator:
    """Runs a test of ``served`` with every one of ``rows`` on a server of each load mode.

    ``make test`` runs each on one of them, and none of which ``is_long``, called with a row,
    says that it is for ``make test-long`` alone.
    """
    return pytest.mark.parametrize(
        f"server, {names}",
        [
            _param(
                flavour,
                *row,
                is_long=is_long(*row) or not _is_its_turn(flavour, number),
                suffix="".join(f"-{value}" for value in row if value is not None),
            )
            for flavour in _QUICK_GR
            for number, row in enumerate(rows)
        ],
        indirect=["server"],
        scope="session",
    )


def _is_its_turn(flavour: Flavour, number: int) -> bool:
    return _QUICK_GR[number % len(_QUICK_GR)] == flavour


def server_number(item: pytest.Item) -> int:
    """Which of ``FLAVOURS`` a test's server is of, from 1 on; 0 for none of them."""
    params = (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )
    server = params.get("server")
    return FLAVOURS.index(server) + 1 if isinstance(server, Flavour) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A real server that rests on ``a``, under version ``start``, when a test gets it."""

    client: Client
    process: ServerProcess
    flavour: Flavour

    @property
    def dialect(self) -> str:
        """The server's."""
        return self.flavour.dialect
