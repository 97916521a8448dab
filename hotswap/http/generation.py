"""``/generate``: run prompts, whole or as a stream of server-sent events."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import anyio
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hotswap.http.batches import Batch, all_encoded, expanded
from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import ClientGone, NotFound
from hotswap.http.in_flight import Ticket
from hotswap.http.json_body import converted, ignored_names, named_values
from hotswap.http.logprobs import check_prompts
from hotswap.http.replies import Json, encode
from hotswap.http.runs import EngineFailed, run_together, submit_all
from hotswap.http.schemas import GenerateBody
from hotswap.http.served import Served, served
from hotswap.http.shown import decode_of, transcript_of
from hotswap.http.transcription import Transcription
from hotswap.seams import GenerateRequest, Generator

__all__ = ["EngineFailed", "Generate", "generator_of", "transcriptions"]

_log = logging.getLogger("hotswap.http")

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


# The engine stands still for a reader that is behind, and keeps what the request holds.
_STALL_S = 60.0


class Generate:
    """An ASGI endpoint, because the reply is sent while the client is watched.

    A client that takes longer than ``stall_s`` to read one event counts as gone.
    """

    def __init__(self, *, stall_s: float = _STALL_S) -> None:
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, of one prompt or of many."""
        request = Request(scope, receive)
        serving = served(request)
        limit_bytes = serving.settings.max_http_request_bytes
        values = await named_values(request, limit_bytes=limit_bytes)
        body = converted(values, GenerateBody)
        generator_of(serving)
        batch = expanded(body)
        ignored = ignored_names(values, GenerateBody)
        with ExitStack() as stack:
            tickets = [
                stack.enter_context(serving.requests.reserve(rid, batch=whole))
                for rid, whole in batch.rids
            ]

            async def run() -> None:
                begun = await transcriptions(serving, batch, tickets, ignored=ignored)
                reply = _Reply(serving, begun, is_list=batch.is_list, stall_s=self._stall_s)
                if body.stream:
                    await reply.stream(send)
                else:
                    await Json(await reply.whole())(scope, receive, send)

            await until_disconnect(receive, run)


def generator_of(serving: Served) -> Generator:
    """The engine as one that generates. Raises: NotFound."""
    if not isinstance(serving.engine, Generator):
        raise NotFound("this server's engine does not generate over HTTP")
    return serving.engine


async def transcriptions(
    serving: Served, batch: Batch, tickets: Sequence[Ticket], *, ignored: Sequence[str] = ()
) -> list[Transcription]:
    """Encode, wait at the door, submit all of ``batch`` or none. Raises: as ``submit_all``."""
    engine = generator_of(serving)
    prompts = await all_encoded(engine.encode, batch.sources, encoders=serving.encoders)
    shown = batch.shown
    lengths = map(len, prompts)
    check_prompts(zip(lengths, [one.logprobs for one in shown], strict=True))
    requests = [
        GenerateRequest(
            rid=ticket.engine_rid, input_ids=input_ids, sampling=sampling, logprobs=one.logprobs
        )
        for ticket, input_ids, sampling, one in zip(
            tickets, prompts, batch.samplings, shown, strict=True
        )
    ]
    generations = await submit_all(serving, engine, list(zip(tickets, requests, strict=True)))
    decode, stamp = decode_of(engine), serving.commands.stamp
    return [
        Transcription(
            ticket,
            generation,
            transcript_of(ticket.rid, request, one, decode=decode, stamp=stamp, ignored=ignored),
        )
        for ticket, generation, request, one in zip(
            tickets, generations, requests, shown, strict=True
        )
    ]


class _Reply:
    """What a client gets of its running requests; with ``is_list`` a list of them."""

    def __init__(
        self,
        serving: Served,
        begun: Sequence[Transcription],
        *,
        is_list: bool,
        stall_s: float,
    ) -> None:
        self._serving = serving
        self._begun = begun
        self._is_list = is_list
        self._stall_s = stall_s
        self._sending = anyio.Lock()

    async def whole(self) -> object:
        """The body, once the last request has ended. Raises: EngineFailed."""
        if not self._is_list:
            (only,) = self._begun
            await only.read()
            return only.transcript.reply()
        # At the same time: an engine may bound how much of a reply waits unread.
        await run_together([one.read for one in self._begun])
        return [one.transcript.reply() for one in self._begun]

    async def stream(self, send: Send) -> None:
        """Events of all of them as they come; those of a list say which by ``index``.

        Raises: ClientGone when nobody reads them.
        """
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        if self._is_list:
            await run_together(
                [
                    partial(self._events_of, one, send, {"index": index})
                    for index, one in enumerate(self._begun)
                ]
            )
        else:
            await self._events_of(self._begun[0], send, {})
        await self._event(send, b"[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events_of(self, one: Transcription, send: Send, index: Mapping[str, object]) -> None:
        async def tell() -> None:
            await self._event(send, encode({**one.transcript.reply(), **index}))

        try:
            await one.read(tell)
        except ClientGone:
            raise
        except Exception as error:
            # The status has been sent: the stream itself has to tell of the error.
            _log.exception("stream %s failed", one.ticket.rid, extra={"rid": one.ticket.rid})
            await self._event(send, encode({**self._serving.dialect.stream_error(error), **index}))

    async def _event(self, send: Send, payload: bytes) -> None:
        # A server's send is not for several tasks at once.
        async with self._sending:
            body = b"data: " + payload + b"\n\n"
            with anyio.move_on_after(self._stall_s) as waiting:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        if waiting.cancelled_caught:
            _log.warning("a client has read nothing for %g s; its request ends", self._stall_s)
            raise ClientGone
