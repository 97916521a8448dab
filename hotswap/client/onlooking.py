"""How far an update is, told while its request waits for the reply.

Rules:

* Nothing here fails an update: a look that is not answered is left out, and a callback that
  raised is not called again.
* Once the update is over it is not called any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import anyio
import httpx

from hotswap.client.commands import state
from hotswap.client.drivers import AsyncDriver, Driver
from hotswap.client.effects import Steps, sleep
from hotswap.client.session import ServerKind, Session
from hotswap.client.shown import UpdateInProgress
from hotswap.errors import HotswapError

__all__ = ["ProgressCallback", "beside", "looked_at"]

_log = logging.getLogger("hotswap.client")

_LOOK_EVERY_S = 0.25
_LOOK_S = 1.0

T = TypeVar("T")

ProgressCallback: TypeAlias = Callable[[UpdateInProgress], object]
"""Called a few times a second with what the server says of the update; what it returns is
not looked at."""


@contextmanager
def looked_at(
    session: Session, http: httpx.Client, *, source: str, progress: ProgressCallback | None
) -> Iterator[None]:
    """Tell ``progress`` of the update from ``source`` for as long as the body runs.

    On a thread of its own, which is over when this is. The kind of the server has to be known.
    """
    if progress is None:
        yield
        return
    over = threading.Event()
    driver = Driver(http, session.address, pause=over.wait)
    looks = _looks(session, source, progress, is_over=over.is_set)
    thread = threading.Thread(
        target=driver.run, args=(looks,), name="hotswap-progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def beside(
    work: Coroutine[Any, Any, T],
    session: Session,
    http: httpx.AsyncClient,
    *,
    source: str,
    progress: ProgressCallback | None,
) -> T:
    """The result of ``work``, with ``progress`` told meanwhile, on the same event loop."""
    if progress is None:
        return await work
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        looks = _looks(session, source, progress, is_over=lambda: False)
        group.start_soon(AsyncDriver(http, session.address).run, looks)
        try:
            result = await work
        except Exception as error:
            # Raised outside the group, so that it arrives as itself and not in a group.
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result


def _looks(
    session: Session, source: str, progress: ProgressCallback, *, is_over: Callable[[], bool]
) -> Steps[None]:
    # SGLang tells nothing of an update that runs.
    while session.kind is not ServerKind.SGLANG and not is_over():
        seen = yield from _look(session, source)
        if seen is not None and not is_over():
            try:
                progress(seen)
            except Exception:
                _log.exception(
                    "the progress of an update from %s is told no longer: its callback raised",
                    source,
                )
                return
        yield from sleep(_LOOK_EVERY_S)


def _look(session: Session, source: str) -> Steps[UpdateInProgress | None]:
    try:
        seen = yield from state(session, budget=session.budget(_LOOK_S))
    except HotswapError:
        return None
    return next((update for update in seen.updates if update.source == source), None)
