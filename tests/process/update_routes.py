"""The app's own update routes, and how a test delivers a checkpoint over each.

Rule: a route of kind ``update`` without a driver here fails a test, so that a route
that is added later is put through every fault, or fails.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from starlette.routing import Route

from hotswap.http import Kind, create_app
from hotswap.http.routes import kind_of
from hotswap.plugins import load_plugins
from hotswap.push import SafetensorsBody
from hotswap.settings import Settings
from hotswap.testing.fake_commands import FakeCommands
from hotswap.testing.scripted_engine import ScriptedEngine
from hotswap.types import PauseMode
from tests.process.http_client import Client
from tests.process.push_producer import checkpoint
from tests.process.pushing import TRAINER
from tests.tiers import mostly_long

__all__ = [
    "DISK",
    "DRIVERS",
    "EACH_ROUTE",
    "MODES",
    "PUSH",
    "ROUTES",
    "TENSOR",
    "Delivery",
    "deliver",
    "update_routes",
]

MODES = tuple(mode.value for mode in PauseMode)
"""Every pause mode on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What to deliver: all tensors of the checkpoint in ``directory``, under labels."""

    directory: Path
    version: str | None = None
    token_step: int | None = None
    flush_cache: bool = True
    pause_mode: str | None = None


Driver: TypeAlias = Callable[[Client, Delivery], Awaitable[tuple[int, Any]]]
"""Makes every request that the route needs; status and body of the deciding one."""


async def _disk(client: Client, delivery: Delivery) -> tuple[int, Any]:
    return await client.post(
        "/update_weights_from_disk",
        model_path=str(delivery.directory),
        weight_version=delivery.version,
        token_step=delivery.token_step,
        flush_cache=delivery.flush_cache,
        pause_mode=delivery.pause_mode,
    )


async def _tensor(client: Client, delivery: Delivery) -> tuple[int, Any]:
    """All of them in one bucket, of another process."""
    async with TRAINER.payloads(delivery.directory) as payloads:
        return await client.post(
            TENSOR,
            serialized_named_tensors=payloads,
            load_format="flattened_bucket",
            scope="full",
            weight_version=delivery.version,
            token_step=delivery.token_step,
            flush_cache=delivery.flush_cache,
            pause_mode=delivery.pause_mode,
        )


async def _push(client: Client, delivery: Delivery) -> tuple[int, Any]:
    """All of them as one safetensors body."""
    said = {
        "weight_version": delivery.version,
        "token_step": delivery.token_step,
        "flush_cache": delivery.flush_cache,
        "pause_mode": delivery.pause_mode,
    }
    reply = await client.http.post(
        PUSH,
        params={name: value for name, value in said.items() if value is not None},
        content=b"".join(SafetensorsBody(checkpoint(delivery.directory))),
        headers={"content-type": "application/octet-stream"},
    )
    return reply.status_code, reply.json()


DISK, TENSOR = "/update_weights_from_disk", "/update_weights_from_tensor"
PUSH = "/hotswap/v1/push"

DRIVERS: Mapping[str, Driver] = {DISK: _disk, PUSH: _push, TENSOR: _tensor}


def update_routes() -> list[str]:
    """Paths of all routes of kind update, those of installed plug-ins among them."""
    app = create_app(FakeCommands(), ScriptedEngine(), Settings(), plugins=load_plugins())
    routes = (route for route in app.routes if kind_of(route) is Kind.UPDATE)
    return sorted(route.path for route in routes if isinstance(route, Route))


ROUTES = update_routes()

EACH_ROUTE = mostly_long(ROUTES, but=[DISK])
"""As parameters: what holds for every route holds by what they share, so that ``make test``
puts one through it all, and ``make test-long`` each."""


async def deliver(client: Client, route: str, delivery: Delivery) -> tuple[int, Any]:
    """Send ``delivery`` over ``route``. Raises: AssertionError for one without a driver."""
    assert route in DRIVERS, f"{route} changes weights and has no driver in {__name__}: add one"
    return await DRIVERS[route](client, delivery)
