"""The door for requests: checked and counted on the event loop, queued for the thread."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Generic, Protocol, TypeVar

from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.in_flight import InFlightLedger
from hotswap.engine.logprobs import check_logprobs
from hotswap.engine.loop import EngineLoop
from hotswap.engine.sampling import check_sampling
from hotswap.engine.tokenizer import TextCodec
from hotswap.seams import GenerateRequest, LogprobsWanted, TokenChunk
from hotswap.types import WeightStamp

__all__ = ["RequestDoor", "Takes"]


class _Request(Protocol):
    @property
    def generation(self) -> EmbeddedGeneration: ...


RequestT = TypeVar("RequestT", bound=_Request)
TakenT = TypeVar("TakenT", contravariant=True)


class Takes(Protocol[TakenT]):
    """A scheduler that takes requests. Engine thread only, ``stamp`` excepted."""

    @property
    def stamp(self) -> WeightStamp:
        """The weights of the next forward pass."""
        ...

    def add(self, request: TakenT) -> None:
        """Queue a request."""
        ...

    def abort(self, request: TakenT) -> None:
        """End it with what it has."""
        ...

    def go_on(self, request: TakenT) -> None:
        """Its reader has caught up."""
        ...


class RequestDoor(ABC, Generic[RequestT]):
    """Turns what a client asks for into requests of a scheduler. Event-loop thread."""

    def __init__(
        self,
        *,
        scheduler: Takes[RequestT],
        loop: EngineLoop,
        ledger: InFlightLedger,
        codec: TextCodec | None,
        vocab_size: int,
        max_context: int,
        max_tokens: int,
        max_unread: int,
        eos: Callable[[], frozenset[int]],
    ) -> None:
        """``eos`` says which tokens end a text that is asked for now.

        ``max_tokens`` bounds a text, prompt and output: ``max_context``, or what there is
        memory for. ``max_unread`` bounds the chunks of a request that wait to be read.
        """
        self._scheduler = scheduler
        self._loop = loop
        self._ledger = ledger
        self._codec = codec
        self._vocab_size = vocab_size
        self._max_context = max_context
        self._max_tokens = max_tokens
        self._max_unread = max_unread
        self._eos = eos

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._loop!r}>"

    @property
    def has_codec(self) -> bool:
        """Whether text can be served, not only token ids."""
        return self._codec is not None

    @property
    def text_codec(self) -> TextCodec:
        """Raises: ValueError without a tokenizer."""
        if self._codec is None:
            raise ValueError("the model has no tokenizer.json; send input_ids")
        return self._codec

    def submit(self, asked: GenerateRequest) -> EmbeddedGeneration:
        """Count and queue a request. Raises: see ``Generator.submit``."""
        self._check(asked)
        self._ledger.enter(asked.rid)
        try:
            made: list[RequestT] = []
            generation = EmbeddedGeneration(
                asked.rid,
                loop=asyncio.get_running_loop(),
                abort=lambda: self._post(partial(self._scheduler.abort, made[0])),
                go_on=lambda: self._post(partial(self._scheduler.go_on, made[0])),
                max_unread=self._max_unread,
            )
            made.append(self._request(asked, generation))
            added = self._loop.post(partial(self._scheduler.add, made[0]))
        except BaseException:
            self._ledger.leave(asked.rid, was_running=False)
            raise
        added.add_done_callback(partial(self._end_if_lost, generation))
        return generation

    @abstractmethod
    def _request(self, asked: GenerateRequest, generation: EmbeddedGeneration) -> RequestT:
        """What the scheduler takes for ``asked``, which has been checked."""

    def _check(self, asked: GenerateRequest) -> None:
        check_sampling(asked.sampling)
        length = len(asked.input_ids)
        if not 0 < length < self._max_tokens:
            raise ValueError(self._odd_length(length))
        odd = [token for token in asked.input_ids if not 0 <= token < self._vocab_size]
        if odd:
            raise ValueError(f"token id {odd[0]} is outside 0 to {self._vocab_size - 1}")
        if asked.logprobs is not None:
            self._check_logprobs(asked.logprobs, prompt_length=length)
        if asked.sampling.stop and self._codec is None:
            raise ValueError(
                "stop strings need a tokenizer, and the model has no tokenizer.json; "
                "use stop_token_ids"
            )

    def _check_logprobs(self, wanted: LogprobsWanted, *, prompt_length: int) -> None:
        check_logprobs(wanted, prompt_length=prompt_length, vocab_size=self._vocab_size)

    def _odd_length(self, length: int) -> str:
        most, context = self._max_tokens, self._max_context
        wanted = f"the prompt has {length} tokens, wanted 1 to {most - 1}, as "
        if most < context:
            return (
                f"{wanted}there is memory for the keys and values of {most} tokens, output "
                "included; start the server with more (--max-total-tokens, --mem-fraction-static)"
            )
        return f"{wanted}the context of {context} must hold the output too"

    def _post(self, work: Callable[[], None]) -> None:
        # A thread that has ended has ended the request with it.
        with suppress(RuntimeError):
            self._loop.post(work)

    def _end_if_lost(self, generation: EmbeddedGeneration, added: Future[None]) -> None:
        """Called on any thread. The engine ended before it saw the request: end it here."""
        if added.exception() is None:
            return
        self._ledger.leave(generation.rid, was_running=False)
        chunk = TokenChunk(token_id=None, stamp=self._scheduler.stamp, finish_reason="error")
        # A closed loop has nobody left who could read it.
        with suppress(RuntimeError):
            generation.loop.call_soon_threadsafe(generation.deliver, chunk)
