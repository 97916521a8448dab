"""The two ways to swap that the demo shows, both over HTTP and under load."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import anyio

from contrib.demo.client import Client

__all__ = ["Swap", "in_four_calls", "in_one_call"]

Way: TypeAlias = Callable[[Client, Path, str], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One swap of the demo: which checkpoint, what it is called, and how it gets in."""

    directory: Path
    version: str
    way: Way
    title: str


async def in_four_calls(client: Client, directory: Path, version: str) -> dict[str, Any]:
    """What RL trainers send: pause, flush, update, continue.

    What was paused is continued whatever happened in between.
    """
    await client.pause("retract")
    try:
        await client.flush()
        return await client.update(str(directory), version=version)
    finally:
        with anyio.CancelScope(shield=True):
            await client.resume()


async def in_one_call(client: Client, directory: Path, version: str) -> dict[str, Any]:
    """The server stages while it serves, and pauses by itself for the commit only."""
    return await client.update(str(directory), version=version, pause_mode="retract")
