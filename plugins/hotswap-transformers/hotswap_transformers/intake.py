"""The door for requests: checked and counted on the event loop, queued for the thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.in_flight import InFlightLedger
from hotswap.engine.logprobs import check_logprobs
from hotswap.engine.loop import EngineLoop
from hotswap.engine.sampling import Sampler, check_sampling
from hotswap.engine.stopping import StopRule
from hotswap.engine.tokenizer import TextCodec
from hotswap.seams import GenerateRequest, TokenChunk
from hotswap_transformers.request import Request
from hotswap_transformers.steps import BatchSteps

__all__ = ["Intake"]


class Intake:
    """Turns what a client asks for into requests of the scheduler. Event-loop thread.

    ``max_tokens`` bounds a text, prompt and output; ``max_unread`` the chunks of a request
    that wait to be read.
    """

    def __init__(
        self,
        *,
        steps: BatchSteps,
        loop: EngineLoop,
        ledger: InFlightLedger,
        codec: TextCodec | None,
        vocab_size: int,
        max_tokens: int,
        max_unread: int,
    ) -> None:
        self._steps = steps
        self._loop = loop
        self._ledger = ledger
        self._codec = codec
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._max_unread = max_unread

    def __repr__(self) -> str:
        return f"<Intake of {self._loop!r}>"

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
        """Count and queue a request. Raises: see ``TransformersEngine.submit``."""
        self._check(asked)
        self._ledger.enter(asked.rid)
        try:
            request = self._request(asked)
            added = self._loop.post(partial(self._steps.scheduler.add, request))
        except BaseException:
            self._ledger.leave(asked.rid, was_running=False)
            raise
        added.add_done_callback(partial(self._end_if_lost, request))
        return request.generation

    def _check(self, asked: GenerateRequest) -> None:
        check_sampling(asked.sampling)
        length = len(asked.input_ids)
        if not 0 < length < self._max_tokens:
            raise ValueError(
                f"the prompt has {length} tokens, wanted 1 to {self._max_tokens - 1}, as the "
                f"context (or the cache) of {self._max_tokens} must hold the output too"
            )
        odd = [token for token in asked.input_ids if not 0 <= token < self._vocab_size]
        if odd:
            raise ValueError(f"token id {odd[0]} is outside 0 to {self._vocab_size - 1}")
        if asked.logprobs is not None:
            if asked.logprobs.input_start is not None:
                raise ValueError(
                    "this engine scores output tokens only; leave out the log-probabilities of "
                    "the prompt, or serve with the embedded engine"
                )
            check_logprobs(asked.logprobs, prompt_length=length, vocab_size=self._vocab_size)
        if asked.sampling.stop and self._codec is None:
            raise ValueError(
                "stop strings need a tokenizer, and the model has no tokenizer.json; "
                "use stop_token_ids"
            )

    def _request(self, asked: GenerateRequest) -> Request:
        scheduler = self._steps.scheduler
        stop_rule = StopRule(
            asked.sampling,
            eos=self._steps.eos,
            room=self._max_tokens - len(asked.input_ids),
            codec=self._codec,
        )
        generation = EmbeddedGeneration(
            asked.rid,
            loop=asyncio.get_running_loop(),
            abort=lambda: self._post(partial(scheduler.abort, request)),
            go_on=lambda: self._post(partial(scheduler.go_on, request)),
            max_unread=self._max_unread,
        )
        request = Request(
            generation=generation,
            tokens=list(asked.input_ids),
            sampler=Sampler(asked.sampling, stop_ids=stop_rule.ids),
            stop_rule=stop_rule,
            logprobs=asked.logprobs,
        )
        return request

    def _post(self, work: Callable[[], None]) -> None:
        # A thread that has ended has ended the request with it.
        with suppress(RuntimeError):
            self._loop.post(work)

    def _end_if_lost(self, request: Request, added: Future[None]) -> None:
        """Called on any thread. The engine ended before it saw the request: end it here."""
        if added.exception() is None:
            return
        generation = request.generation
        self._ledger.leave(generation.rid, was_running=False)
        stamp = self._steps.scheduler.stamp
        chunk = TokenChunk(token_id=None, stamp=stamp, finish_reason="error")
        # A closed loop has nobody left who could read it.
        with suppress(RuntimeError):
            generation.loop.call_soon_threadsafe(generation.deliver, chunk)
