"""``/hotswap/v1/push``: tensors on hotswap's own wire, without a pickle.

Rules:

* A safetensors body goes straight into staging memory, as it comes; it has a bound of its own
  in place of ``--max-http-request-bytes``: that the live model has what it names. What it is
  called and how it is met stands in the query.
* A JSON body describes shared memory of this machine. It stays its sender's; that of one that
  has ended is removed before the reply.
* What a sender leaves half done touches no live weight.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from hotswap.errors import UpdateRejected
from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import RequestInvalid, ShuttingDown
from hotswap.http.json_body import converted, query_of, read_body, values_of
from hotswap.http.push_bodies import Labelled, UpdateId
from hotswap.http.replies import Json
from hotswap.http.routes import Kind, KindedRoute
from hotswap.http.served import Served, served
from hotswap.http.update_replies import chunk_body, staged_body
from hotswap.push import (
    MAX_DESCRIPTION_BYTES,
    DescribedTensor,
    Description,
    Incoming,
    Natural,
    Nonce,
    SharedPush,
    StreamedPush,
)
from hotswap.types import LoadMode, Scope
from hotswap.uninterrupted import on_worker_thread, own_threads, uninterrupted
from hotswap.wire import Pushed, push_update

__all__ = ["PushBody", "push", "push_route"]

_MAX_DIGITS = 18


class PushBody(Labelled, frozen=True, kw_only=True):
    """``/hotswap/v1/push``: all of the weights, or (``scope`` partial) a part of them, as an
    update of its own or in the session ``update_id``.

    ``segment`` of ``size_bytes`` bytes is shared memory; it begins with the 32 bytes of
    ``nonce``, and has the ``tensors``. A safetensors body comes without these four.
    """

    scope: Literal["partial", "full"] = "full"
    update_id: UpdateId | None = None
    segment: str | None = None
    size_bytes: Natural | None = None
    nonce: Nonce | None = None
    tensors: list[DescribedTensor] | None = None

    def description(self) -> Description:
        """The shared memory. Raises: RequestInvalid for what is missing."""
        segment, size, nonce, tensors = self.segment, self.size_bytes, self.nonce, self.tensors
        if segment is None or size is None or nonce is None or not tensors:
            raise RequestInvalid(
                "a push in JSON wants segment, size_bytes, nonce and at least one of tensors; a "
                "safetensors body wants another content type, as application/octet-stream"
            )
        return Description(segment=segment, size_bytes=size, nonce=nonce, tensors=tensors)


def push_route() -> KindedRoute:
    """The one route, for both forms."""
    return KindedRoute(
        "/hotswap/v1/push",
        push,
        kind=Kind.UPDATE,
        methods=["POST"],
        body=PushBody,
        streams_upload=True,
    )


async def push(request: Request) -> Response:
    """Replace weights with a safetensors body, or with tensors in shared memory."""
    serving = served(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # No content type is JSON, as on every other route.
    if kind in ("", "application/json"):
        return await _described(request, serving)
    body = converted(query_of(request), PushBody)
    closed = partial(_goes_down, serving)
    incoming = Incoming(request.receive, stall_s=serving.stall_s, closed=closed)
    try:
        pushed = await StreamedPush.begin(incoming, length=_length(request))
        # Never straight into live weights: a sender may stop half way.
        work = partial(_pushed, serving, body, pushed, len(pushed), LoadMode.STAGED)
        return Json(await until_disconnect(incoming.receive, work))
    except UpdateRejected as error:
        if not serving.requests.closed:
            raise
        # Who reads the body may have been told first that no more of it is going to be read.
        raise ShuttingDown("the server is shutting down; push to another one") from error
    finally:
        incoming.end("the push is over")


async def _described(request: Request, serving: Served) -> Response:
    text = await read_body(request.receive, limit_bytes=MAX_DESCRIPTION_BYTES)
    # The names of ten thousand tensors take half a second to read.
    body, pushed = await on_worker_thread(_understood, request, text)
    mode = LoadMode(serving.settings.load_mode)
    try:
        work = partial(_pushed, serving, body, pushed, len(pushed), mode)
        return Json(await until_disconnect(request.receive, work))
    finally:
        release = anyio.to_thread.run_sync(pushed.release, limiter=own_threads())
        await uninterrupted(release)


def _understood(request: Request, text: bytes) -> tuple[PushBody, SharedPush]:
    body = converted(values_of(request, text), PushBody)
    return body, body.description().push()


async def _pushed(
    serving: Served, body: PushBody, pushed: Pushed, count: int, mode: LoadMode
) -> dict[str, object]:
    labels, sessions = body.labels(), serving.commands.sessions
    session = sessions.for_chunk(body.update_id)
    if session is not None:
        return staged_body(serving, session, await sessions.stage(session, pushed, labels))
    update = push_update(
        pushed,
        source=f"a push of {count} tensors",
        version=labels.version,
        token_step=labels.token_step,
        flush_cache=labels.flush_cache,
        pause_mode=labels.pause_mode,
        mode=mode,
        scope=Scope(body.scope),
    )
    done = await serving.commands.update(update)
    message = serving.dialect.pushed(version=labels.version)
    return {"message": message, **chunk_body(serving, done)}


def _goes_down(serving: Served) -> bool:
    return serving.requests.closed


def _length(request: Request) -> int | None:
    """What the header says of the body; None where it says nothing that can be."""
    text = request.headers.get("content-length", "").strip()
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None
