"""One push without a client at hand."""

from __future__ import annotations

from typing import Any

from hotswap.client.async_client import AsyncClient
from hotswap.client.client import Client
from hotswap.client.pushing import Tensors
from hotswap.client.shown import UpdateResult

__all__ = ["push", "push_async"]


def push(
    tensors: Tensors,
    url: str = "http://127.0.0.1:30000",
    *,
    api_key: str | None = None,
    admin_key: str | None = None,
    **options: Any,
) -> UpdateResult:
    """Bring ``tensors`` to the server at ``url``; ``options`` are those of ``Client.push``."""
    with Client(url, api_key=api_key, admin_key=admin_key) as client:
        return client.push(tensors, **options)


async def push_async(
    tensors: Tensors,
    url: str = "http://127.0.0.1:30000",
    *,
    api_key: str | None = None,
    admin_key: str | None = None,
    **options: Any,
) -> UpdateResult:
    """The same, on asyncio; ``options`` are those of ``AsyncClient.push``."""
    async with AsyncClient(url, api_key=api_key, admin_key=admin_key) as client:
        return await client.push(tensors, **options)
