"""A real server that one module of tests has for itself, and its client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from hotswap.testing.server import ServerProcess
from tests.process.forked_server import ForkedServer
from tests.process.http_client import Client, client_of

__all__ = ["own_server", "rested"]


@contextmanager
def own_server(model: Path, *arguments: str) -> Iterator[ServerProcess]:
    """One that holds what comes while it is paused; it lives to the end and logs no traceback."""
    with ForkedServer(model, "--while-paused", "hold", *arguments) as process:
        yield process
        assert process.exit_code is None, process.log
        assert "Traceback" not in process.log, process.log


@asynccontextmanager
async def rested(server: ServerProcess, model: Path) -> AsyncIterator[Client]:
    """A client of ``server``, which runs on ``model`` under version 0 and has no requests."""
    async with client_of(server.base_url) as client:
        await client.resume()
        await client.update(model, weight_version="0", pause_mode="abort")
        yield client
