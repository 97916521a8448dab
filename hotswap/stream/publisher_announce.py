"""Telling those who move files that a version is there: ``hotswap_post_write`` hooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import anyio

from hotswap.stream.layout import spelled

__all__ = ["PostWrite", "announce"]

PostWrite: TypeAlias = Callable[[str, str | None], Awaitable[None]]
"""Makes a directory visible to readers: it is given the directory and its version."""


def announce(hooks: Sequence[PostWrite], directory: Path, version: int) -> None:
    """Await each of ``hooks`` in turn. Raises: what the first one that fails raises."""
    if not hooks:
        return

    async def call() -> None:
        for hook in hooks:
            await hook(str(directory), spelled(version))

    # A thread of its own: a trainer that is async has a loop running on this one.
    with ThreadPoolExecutor(1, thread_name_prefix="hotswap-announce") as thread:
        thread.submit(anyio.run, call).result()
