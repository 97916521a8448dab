"""``/generate``: run prompts, whole or as a stream of server-sent events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hotswap.http.batches import Batch, all_encoded, expanded
from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import ClientGone, NotFound
from hotswap.http.event_stream import EventStream
from hotswap.http.failures import log_failure
from hotswap.http.in_flight import Ticket
from hotswap.http.json_body import converted, ignored_names, named_values
from hotswap.http.logprobs import check_prompts
from hotswap.http.patience import Patience
from hotswap.http.replies import Json, encode
from hotswap.http.runs import EngineFailed, run_together, submit_all
from hotswap.http.schemas import INNER_BODIES, GenerateBody
from hotswap.http.served import Served, served
from hotswap.http.shown import decode_of, transcript_of
from hotswap.http.transcription import Transcription
from hotswap.seams import GenerateRequest, Generator

__all__ = ["EngineFailed", "Generate", "generator_of", "transcriptions"]


class Generate:
    """An ASGI endpoint, because the reply is sent while the client is watched."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, of one prompt or of many."""
        request = Request(scope, receive)
        serving = served(request)
        generator_of(serving)  # first: whatever the body is, there is no such route here
        limit_bytes = serving.settings.max_http_request_bytes
        values = await named_values(request, limit_bytes=limit_bytes)
        body = converted(values, GenerateBody)
        batch = expanded(body, temperature=serving.dialect.temperature)
        ignored = ignored_names(values, GenerateBody, inner=INNER_BODIES)
        with ExitStack() as stack:
            tickets = [
                stack.enter_context(serving.requests.reserve(rid, batch=whole))
                for rid, whole in batch.rids
            ]

            async def begin() -> _Reply:
                begun = await transcriptions(serving, batch, tickets, ignored=ignored)
                return _Reply(serving, begun, is_list=batch.is_list)

            async def whole() -> object:
                return await (await begin()).whole()

            async def run() -> None:
                patience = Patience(serving.patience_s)
                if body.stream:
                    reply = await patience.run(begin)
                    await reply.stream(EventStream(send, stall_s=serving.stall_s))
                else:
                    await Json(await patience.run(whole))(scope, receive, send)

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

    def __init__(self, serving: Served, begun: Sequence[Transcription], *, is_list: bool) -> None:
        self._serving = serving
        self._begun = begun
        self._is_list = is_list

    async def whole(self) -> object:
        """The body, once the last request has ended. Raises: as ``check_end``."""
        if not self._is_list:
            (only,) = self._begun
            await only.read()
            return self._whole_of(only)
        # At the same time: an engine may bound how much of a reply waits unread.
        await run_together([one.read for one in self._begun])
        return [self._whole_of(one) for one in self._begun]

    def _whole_of(self, one: Transcription) -> dict[str, object]:
        return one.whole(self._serving.dialect)

    async def stream(self, events: EventStream) -> None:
        """Events of all of them as they come; those of a list say which by ``index``.

        Raises: ClientGone when nobody reads them.
        """
        await events.begin()
        if self._is_list:
            await run_together(
                [
                    partial(self._events_of, one, events, {"index": index})
                    for index, one in enumerate(self._begun)
                ]
            )
        else:
            await self._events_of(self._begun[0], events, {})
        await events.payload(b"[DONE]")
        await events.end()

    async def _events_of(
        self, one: Transcription, events: EventStream, index: Mapping[str, object]
    ) -> None:
        patience = Patience(self._serving.patience_s)

        async def tell() -> None:
            await events.payload(encode({**one.transcript.reply(), **index}))
            patience.renew()

        try:
            await patience.run(partial(one.read, tell))
        except ClientGone:
            raise
        except Exception as error:
            # The others of a list may run for long yet.
            one.ticket.abort()
            # The status has been sent: the stream itself has to tell of the error.
            log_failure(f"stream {one.ticket.rid}", error, rid=one.ticket.rid)
            await events.payload(encode({**self._serving.dialect.stream_error(error), **index}))
