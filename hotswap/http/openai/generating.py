"""What both OpenAI routes do with a request: check it, run it, answer it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import NotFound
from hotswap.http.event_stream import EventStream
from hotswap.http.in_flight import Ticket
from hotswap.http.json_body import converted, ignored_names, named_values
from hotswap.http.openai.answers import Answer, Form
from hotswap.http.openai.at_start import AtStart, at_start
from hotswap.http.openai.bodies import MAX_CHOICES, GeneratingBody
from hotswap.http.openai.choices import Choice, Prompt
from hotswap.http.openai.errors import ParameterRefused
from hotswap.http.openai.models import check_model
from hotswap.http.patience import Patience
from hotswap.http.replies import Json
from hotswap.http.runs import submit_all
from hotswap.http.schemas import sample_seed
from hotswap.http.served import Served, served
from hotswap.http.shown import Shown, transcript_of
from hotswap.seams import GenerateRequest, Generator, LogprobsWanted, SamplingParams

__all__ = ["Asked", "Generating", "Kitchen", "Names"]

B = TypeVar("B", bound=GeneratingBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kitchen:
    """What a request is prepared with."""

    serving: Served
    engine: Generator
    at_start: AtStart

    @property
    def decode(self) -> Callable[..., str] | None:
        """The engine's ``decode``, or None when it has no tokenizer: text is then empty."""
        try:
            self.engine.decode(())
        except ValueError:
            return None
        return self.engine.decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request once its prompts are token ids. ``samplings`` has one for each prompt."""

    prompts: Sequence[Prompt]
    samplings: Sequence[SamplingParams]
    logprobs: LogprobsWanted | None
    form: Form


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """How a route calls its replies: the prefix of their ids, ``object`` whole and in parts."""

    prefix: str
    whole: str
    part: str


class Generating(Generic[B]):
    """An ASGI endpoint, because the reply is sent while the client is watched.

    ``count`` says how many prompts a body has, ``prepare`` makes them tokens.
    """

    def __init__(
        self,
        body: type[B],
        *,
        names: Names,
        count: Callable[[B], int],
        prepare: Callable[[B, Kitchen], Coroutine[Any, Any, Asked]],
    ) -> None:
        self.body = body
        self._names = names
        self._count = count
        self._prepare = prepare

    def __repr__(self) -> str:
        return f"<Generating {self._names.whole}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises: RequestError, CommandError before the reply begins."""
        request = Request(scope, receive)
        serving = served(request)
        # First: whatever the body is, there is no such route here.
        if not isinstance(serving.engine, Generator):
            raise NotFound("this server's engine does not generate over HTTP")
        limit_bytes = serving.settings.max_http_request_bytes
        values = await named_values(request, limit_bytes=limit_bytes)
        body = converted(values, self.body)
        body.refuse_what_is_not_done()
        model = check_model(serving, body.model)
        count = self._count(body) * body.n
        if count > MAX_CHOICES:
            raise ParameterRefused(
                "n", f"{count} choices in one request, wanted at most {MAX_CHOICES}; send several"
            )
        kitchen = Kitchen(serving=serving, engine=serving.engine, at_start=at_start(request))
        whole_id = body.rid or f"{self._names.prefix}-{uuid.uuid4().hex}"
        with ExitStack() as stack:
            tickets = [
                stack.enter_context(serving.requests.reserve(rid, batch=whole_id))
                for rid in _rids(whole_id, count)
            ]

            async def begin() -> Answer:
                asked = await self._prepare(body, kitchen)
                choices = await _begin(
                    asked, kitchen, tickets, ignored=ignored_names(values, self.body)
                )
                head = self._head(whole_id, model, stream=body.stream)
                return Answer(choices, asked.form, head=head, samples=body.n)

            async def whole() -> object:
                return await (await begin()).whole()

            async def run() -> None:
                patience = Patience(serving.patience_s)
                if body.stream:
                    answer = await patience.run(begin)
                    await answer.stream(
                        EventStream(send, stall_s=serving.stall_s),
                        with_usage=body.stream_options.include_usage,
                        patience_s=serving.patience_s,
                    )
                else:
                    await Json(await patience.run(whole))(scope, receive, send)

            await until_disconnect(receive, run)

    def _head(self, whole_id: str, model: str, *, stream: bool) -> dict[str, object]:
        return {
            "id": whole_id,
            "object": self._names.part if stream else self._names.whole,
            "created": int(time.time()),
            "model": model,
        }


async def _begin(
    asked: Asked, kitchen: Kitchen, tickets: Sequence[Ticket], *, ignored: Sequence[str]
) -> list[Choice]:
    """Submit all samples of all prompts, or none."""
    samples = len(tickets) // len(asked.prompts)
    prompts = [prompt for prompt in asked.prompts for _ in range(samples)]
    samplings = [
        _sampled(sampling, number) for sampling in asked.samplings for number in range(samples)
    ]
    requests = [
        GenerateRequest(
            rid=ticket.engine_rid,
            input_ids=prompt.input_ids,
            sampling=sampling,
            logprobs=asked.logprobs,
        )
        for ticket, prompt, sampling in zip(tickets, prompts, samplings, strict=True)
    ]
    runs = list(zip(tickets, requests, strict=True))
    generations = await submit_all(kitchen.serving, kitchen.engine, runs)
    transcript = partial(
        transcript_of,
        shown=Shown(),
        stamp=kitchen.serving.commands.stamp,
        decode=kitchen.decode,
        ignored=ignored,
    )
    return [
        Choice(
            index=index,
            ticket=ticket,
            generation=generation,
            transcript=transcript(ticket.rid, request),
            prompt=prompts[index],
        )
        for index, ((ticket, request), generation) in enumerate(zip(runs, generations, strict=True))
    ]


def _sampled(sampling: SamplingParams, number: int) -> SamplingParams:
    """One seed would make equal samples: each has one of its own."""
    return replace(sampling, seed=sample_seed(sampling.seed, number))


def _rids(whole_id: str, count: int) -> list[str]:
    return [whole_id] if count == 1 else [f"{whole_id}_{number}" for number in range(count)]
