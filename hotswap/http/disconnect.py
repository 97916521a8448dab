"""Tie work to the client that asked for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from starlette.types import Receive

from hotswap.foreign import contained
from hotswap.http.errors import ClientGone

__all__ = ["until_disconnect"]

T = TypeVar("T")


async def until_disconnect(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Run ``work``; cancel it when the client disconnects.

    Call it once a request, after the body has been read: the message that tells
    of a disconnect arrives once. Work that shields itself (a commit after its
    first write) runs to its end all the same, and its result is returned.

    Raises: ClientGone when the work was cancelled; what ``receive`` raised, as when the server
    goes down while a body is coming; otherwise whatever the work raised.
    """
    done: list[T] = []
    raised: list[Exception] = []
    gone: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            try:
                while (await receive())["type"] != "http.disconnect":
                    pass
            except Exception as error:
                gone.append(error)
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            with contained():
                done.append(await work())
        except Exception as error:
            # Carried out by hand: the task group would wrap it in a group.
            raised.append(error)
        tasks.cancel_scope.cancel()
    if raised:
        raise raised[0]
    if not done:
        raise gone[0] if gone else ClientGone
    return done[0]
