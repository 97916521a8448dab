"""The client of a hotswap server, and of SGLang's: blocking and asynchronous.

::

    with Client("http://127.0.0.1:30000") as client:
        client.wait_ready()
        client.update("/checkpoints/7", version="7")

Both clients run the same steps; nothing in here needs torch but a push.
"""

from __future__ import annotations

from hotswap.client.async_client import AsyncClient, AsyncEventStream, AsyncPausedServer
from hotswap.client.client import Client, EventStream, PausedServer
from hotswap.client.errors import (
    NoAnswer,
    NotReady,
    OutcomeUnknown,
    ReplyMalformed,
    RequestRefused,
    StillPaused,
    WeightsAfter,
    weights_after,
)
from hotswap.client.push_calls import push, push_async
from hotswap.client.pushing import Transport
from hotswap.client.session import ServerKind
from hotswap.client.shown import (
    OpenSession,
    PushCoverage,
    ServerState,
    UpdateInProgress,
    UpdateResult,
)
from hotswap.client.sse import ServerEvent

__all__ = [
    "AsyncClient",
    "AsyncEventStream",
    "AsyncPausedServer",
    "Client",
    "EventStream",
    "NoAnswer",
    "NotReady",
    "OpenSession",
    "OutcomeUnknown",
    "PausedServer",
    "PushCoverage",
    "ReplyMalformed",
    "RequestRefused",
    "ServerEvent",
    "ServerKind",
    "ServerState",
    "StillPaused",
    "Transport",
    "UpdateInProgress",
    "UpdateResult",
    "WeightsAfter",
    "push",
    "push_async",
    "weights_after",
]
