"""``/update_weights_from_tensor``: tensors of another process on this machine.

Rule: what came with a payload, shared memory and references, is let go before the reply, on
every path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from hotswap.http.disconnect import until_disconnect
from hotswap.http.json_body import converted, read_into, values_of
from hotswap.http.push_bodies import TensorUpdateBody
from hotswap.http.replies import Json
from hotswap.http.served import Served, device_uuid_of, served
from hotswap.http.update_replies import chunk_body, nothing_body, staged_body
from hotswap.state import Command
from hotswap.types import LoadMode, Scope
from hotswap.uninterrupted import own_threads, uninterrupted
from hotswap.wire import PUSHED, Received, push_update

__all__ = ["update_weights_from_tensor"]

T = TypeVar("T")

_FIELDS = frozenset(TensorUpdateBody.__struct_fields__)


async def update_weights_from_tensor(request: Request) -> Response:
    """Replace weights with tensors in shared memory, or of a process on the same device."""
    serving = served(request)
    kept = bytearray()
    try:
        values = await _values(request, kept, limit_bytes=serving.settings.max_http_request_bytes)
        body = converted(values, TensorUpdateBody)
        received = await _received(serving, body)
    except BaseException:
        # Cut off, too long, no JSON, with a wrong field: as far as it came it may name memory.
        # What none can be told to be for is the first one's to let go.
        if serving.placement.rank == 0:
            await _on_a_thread(lambda: Received.refused(kept).release())
        raise
    kept.clear()
    unread = list(_unread(values)) if serving.placement.rank == 0 else []
    del values
    try:
        work = partial(_pushed, serving, body, received)
        return Json(await until_disconnect(request.receive, work))
    finally:
        await _on_a_thread(received.release)
        if unread:
            await _on_a_thread(lambda: Received.unread(unread).release())


async def _values(request: Request, kept: bytearray, *, limit_bytes: int) -> dict[str, object]:
    await read_into(kept, request.receive, limit_bytes=limit_bytes)
    return values_of(request, kept)


def _unread(values: Mapping[str, object]) -> Iterator[str]:
    """The texts in fields of a request that nobody knows, wherever they stand."""
    waiting = [value for name, value in values.items() if name not in _FIELDS]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


async def _received(serving: Served, body: TensorUpdateBody) -> Received:
    read = partial(
        Received.read,
        body.serialized_named_tensors,
        load_format=body.load_format,
        placement=serving.placement,
        device_uuid=device_uuid_of(serving.engine),
    )
    # Payloads are read one at a time: each may take as much memory as the limits allow.
    async with serving.decoders:
        return await _on_a_thread(read)


async def _on_a_thread(work: Callable[[], T]) -> T:
    return await uninterrupted(anyio.to_thread.run_sync(work, limiter=own_threads()))


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
