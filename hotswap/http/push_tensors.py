"""``/update_weights_from_tensor``: tensors of another process on this machine.

Rule: what came with a payload, shared memory and references, is let go before the reply, on
every path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import RequestInvalid
from hotswap.http.json_body import converted, named_values
from hotswap.http.push_bodies import TensorUpdateBody
from hotswap.http.replies import Json
from hotswap.http.served import Served, device_uuid_of, served
from hotswap.http.update_replies import chunk_body, nothing_body, staged_body
from hotswap.state import Command
from hotswap.types import LoadMode, Scope
from hotswap.uninterrupted import own_threads, uninterrupted
from hotswap.wire import PUSHED, Received, push_update

__all__ = ["update_weights_from_tensor"]


async def update_weights_from_tensor(request: Request) -> Response:
    """Replace weights with tensors in shared memory, or of a process on the same device."""
    serving = served(request)
    limit_bytes = serving.settings.max_http_request_bytes
    values = await named_values(request, limit_bytes=limit_bytes)
    try:
        body = converted(values, TensorUpdateBody)
    except RequestInvalid:
        payloads = values.get("serialized_named_tensors")
        await _released(await _received(serving, partial(Received.refused, payloads)))
        raise
    read = partial(
        Received.read,
        body.serialized_named_tensors,
        load_format=body.load_format,
        placement=serving.placement,
        device_uuid=device_uuid_of(serving.engine),
    )
    received = await _received(serving, read)
    try:
        work = partial(_pushed, serving, body, received)
        return Json(await until_disconnect(request.receive, work))
    finally:
        await _released(received)


async def _received(serving: Served, read: Callable[[], Received]) -> Received:
    # Payloads are read one at a time: each may take as much memory as the limits allow.
    async with serving.decoders:
        return await uninterrupted(anyio.to_thread.run_sync(read, limiter=own_threads()))


async def _released(received: Received) -> None:
    await uninterrupted(anyio.to_thread.run_sync(received.release, limiter=own_threads()))


async def _pushed(serving: Served, body: TensorUpdateBody, received: Received) -> dict[str, object]:
    labels, commands = body.labels(), serving.commands
    session = commands.sessions.for_chunk(body.update_id)
    # All of the weights are not nothing: that is refused as any update without a tensor.
    if received.empty and (session is not None or Scope(body.scope) is Scope.PARTIAL):
        if session is not None:
            session.note_empty(labels)
        commands.counters.count_update(Command.UPDATE, PUSHED, "empty")
        return nothing_body(serving, session)
    if session is not None:
        return staged_body(
            serving, session, await commands.sessions.stage(session, received, labels)
        )
    update = push_update(
        received,
        source=f"a push of {len(received.sent.tensors)} tensors",
        version=labels.version,
        token_step=labels.token_step,
        flush_cache=labels.flush_cache,
        pause_mode=labels.pause_mode,
        mode=LoadMode(serving.settings.load_mode),
        scope=Scope(body.scope),
    )
    done = await commands.update(update)
    message = serving.dialect.pushed(version=labels.version)
    return {"message": message, **chunk_body(serving, done)}
