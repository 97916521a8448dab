"""What the shared fixture ``served`` gives, and the servers that it may be on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from hotswap.testing.server import ServerProcess
from tests.process.http_client import Client

__all__ = ["GR_SERVERS", "SERVERS", "Served", "in_both_dialects", "server_number", "with_pairs"]

# pytest takes a server for the same one when its parameter is the same object.
GR_SERVERS = [
    pytest.param(("staged", "gr"), id="staged"),
    pytest.param(("direct", "gr"), id="direct"),
]
"""Load mode and dialect of the servers that every test of ``served`` runs on."""

SERVERS = [
    *GR_SERVERS,
    pytest.param(("staged", "sglang"), id="staged-sglang"),
    pytest.param(("direct", "sglang"), id="direct-sglang", marks=pytest.mark.long),
]
"""Those, and the same in SGLang's dialect; of these one for ``make test-long``."""

in_both_dialects = pytest.mark.parametrize("server", SERVERS, indirect=True)
"""Runs a test of ``served`` on all of ``SERVERS``."""


def server_number(item: pytest.Item) -> int:
    """Which of ``SERVERS`` a test runs on, from 1 on; 0 for none of them."""
    params = (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )
    values = [server.values for server in SERVERS]
    one = (params.get("server"),)
    return values.index(one) + 1 if one in values else 0


def with_pairs(names: str, pairs: Sequence[tuple[str, str | None]]) -> pytest.MarkDecorator:
    """Runs a test of ``served`` with every one of ``pairs`` on all of ``SERVERS``.

    ``names`` are those of its two arguments. In SGLang's dialect only the pairs of equals,
    and those without a second, are for ``make test``: a dialect changes words, not orders.
    """
    return pytest.mark.parametrize(
        f"server, {names}",
        [
            pytest.param(
                *server.values,
                *pair,
                id=f"{server.id}-{pair[0]}-{pair[1]}",
                marks=[*server.marks, *_long_ones(server, pair)],
            )
            for server in SERVERS
            for pair in pairs
        ],
        indirect=["server"],
    )


def _long_ones(server: Any, pair: tuple[str, str | None]) -> list[pytest.MarkDecorator]:
    is_first = server in GR_SERVERS or pair[1] in (None, pair[0])
    return [] if is_first else [pytest.mark.long]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A real server that rests on ``a``, under version ``start``, when a test gets it."""

    client: Client
    process: ServerProcess
    load_mode: str
    dialect: str
