"""Tie work to the client that asked for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from starlette.types import Receive

from hotswap.http.errors import ClientGone

__all__ = ["until_disconnect"]

T = TypeVar("T")


async def until_disconnect(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Run ``work``; cancel it when the client disconnects.

    Call it once a request, after the body has been read: the message that tells
    of a disconnect arrives once. Work that shields itself (a commit after its
    first write) runs to its end all the same, and its result is returned.

    Raises: ClientGone when the work was cancelled; otherwise whatever it raised.
    """
    done: list[T] = []
    raised: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            done.append(await work())
        except Exception as error:
            # Carried out by hand: the task group would wrap it in a group.
            raised.append(error)
        tasks.cancel_scope.cancel()
    if raised:
        raise raised[0]
    if not done:
        raise ClientGone
    return done[0]
