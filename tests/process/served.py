"""What the shared fixture ``served`` gives."""

from __future__ import annotations

from dataclasses import dataclass

from hotswap.testing.server import ServerProcess
from tests.process.http_client import Client

__all__ = ["Served"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A real server that rests on ``a``, under version ``start``, when a test gets it."""

    client: Client
    process: ServerProcess
    load_mode: str
