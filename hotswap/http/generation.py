"""``/generate``: run a prompt, whole or as a stream of server-sent events."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import anyio
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import NotFound, RequestInvalid
from hotswap.http.in_flight import Ticket
from hotswap.http.json_body import converted, ignored_names, named_values
from hotswap.http.replies import Json, encode
from hotswap.http.runs import EngineFailed, encoded, submit_all
from hotswap.http.schemas import GenerateBody
from hotswap.http.served import Served, served
from hotswap.http.transcript import Decode, Transcript
from hotswap.seams import GenerateRequest, Generation, Generator

__all__ = ["EngineFailed", "Generate"]

_log = logging.getLogger("hotswap.http")

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


class Generate:
    """An ASGI endpoint, because the reply is sent while the client is watched."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        serving = served(request)
        limit_bytes = serving.settings.max_http_request_bytes
        values = await named_values(request, limit_bytes=limit_bytes)
        body = converted(values, GenerateBody)
        engine = serving.engine
        if not isinstance(engine, Generator):
            raise NotFound("this server's engine does not generate over HTTP")
        with serving.requests.reserve(body.rid) as ticket:
            run = _Run(serving, engine, body, ticket)
            run.ignored = ignored_names(values, GenerateBody)
            await until_disconnect(receive, partial(run, scope, receive, send))


class _Run:
    """One request: prepare, wait at the door, submit, answer."""

    def __init__(
        self, serving: Served, engine: Generator, body: GenerateBody, ticket: Ticket
    ) -> None:
        self._serving = serving
        self._engine = engine
        self._body = body
        self._ticket = ticket
        self.ignored: Sequence[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sampling = self._body.sampling_params.params()
        input_ids = await _input_ids(self._engine, self._body, self._serving.encoders)
        request = GenerateRequest(
            rid=self._ticket.engine_rid, input_ids=input_ids, sampling=sampling
        )
        generation = await self._submit(request)
        transcript = Transcript(
            rid=self._ticket.rid,
            prompt_tokens=len(input_ids),
            stamp=self._serving.commands.stamp,
            decode=_decoder(self._engine),
            stops=sampling.stop,
            ignored=self.ignored,
        )
        if self._body.stream:
            await self._stream(generation, transcript, send)
            return
        async for chunk in generation:
            transcript.add(chunk)
        self._note_end(transcript)
        await Json(transcript.reply())(scope, receive, send)

    async def _submit(self, request: GenerateRequest) -> Generation:
        (generation,) = await submit_all(self._serving, self._engine, [(self._ticket, request)])
        return generation

    def _note_end(self, transcript: Transcript) -> None:
        """Raises: EngineFailed when the generation did not end as a request should."""
        if transcript.finish is None or transcript.finish == "error":
            raise EngineFailed(f"request {self._ticket.rid} ended with {transcript.finish}")
        self._ticket.ended = True

    async def _stream(self, generation: Generation, transcript: Transcript, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        try:
            async for chunk in generation:
                transcript.add(chunk, stream=True)
                if transcript.finish != "error":
                    await _event(send, encode(transcript.reply()))
            self._note_end(transcript)
        except Exception as error:
            # The status has been sent: the stream itself has to tell of the error.
            _log.exception("stream %s failed", self._ticket.rid)
            await _event(send, encode(self._serving.dialect.stream_error(error)))
        await _event(send, b"[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _event(send: Send, payload: bytes) -> None:
    body = b"data: " + payload + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _input_ids(
    engine: Generator, body: GenerateBody, encoders: anyio.CapacityLimiter
) -> Sequence[int]:
    if (body.text is None) == (body.input_ids is None):
        seen = "neither" if body.text is None else "both"
        raise RequestInvalid(f"{seen} of text and input_ids given, wanted exactly one of them")
    if body.input_ids is not None:
        if not body.input_ids:
            raise RequestInvalid("input_ids is empty, wanted at least one token id")
        return body.input_ids
    return await encoded(engine.encode, body.text or "", encoders=encoders)


def _decoder(engine: Generator) -> Decode | None:
    """The engine's ``decode``, or None when it has no tokenizer: text is then empty."""
    try:
        engine.decode(())
    except ValueError:
        return None
    return engine.decode
