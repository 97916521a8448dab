"""The door for requests: checked and counted on the event loop, queued for the thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from hotswap.engine.config import ModelConfig
from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.in_flight import InFlightLedger
from hotswap.engine.logprobs import InputScores, check_logprobs, scored_room
from hotswap.engine.loop import EngineLoop
from hotswap.engine.request import Request
from hotswap.engine.sampling import Sampler, check_sampling
from hotswap.engine.scheduler import Scheduler
from hotswap.engine.stopping import StopRule
from hotswap.engine.tokenizer import TextCodec
from hotswap.seams import GenerateRequest, TokenChunk

__all__ = ["Intake"]


class Intake:
    """Turns what a client asks for into requests of the scheduler. Event-loop thread."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        scheduler: Scheduler,
        loop: EngineLoop,
        ledger: InFlightLedger,
        codec: TextCodec | None,
        max_tokens: int,
        max_unread: int,
        eos: Callable[[], frozenset[int]],
    ) -> None:
        """``eos`` says which tokens end a text that is asked for now.

        ``max_tokens`` bounds a text, prompt and output: what the context holds, or what
        there is memory for. ``max_unread`` bounds the chunks of a request that wait to be
        read.
        """
        self._config = config
        self._scheduler = scheduler
        self._loop = loop
        self._ledger = ledger
        self._codec = codec
        self._max_tokens = max_tokens
        self._max_unread = max_unread
        self._eos = eos

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
        """Count and queue a request. Raises: see ``EmbeddedEngine.submit``."""
        self._check(asked)
        self._ledger.enter(asked.rid)
        try:
            request = self._request(asked)
            added = self._loop.post(partial(self._scheduler.add, request))
        except BaseException:
            self._ledger.leave(asked.rid, was_running=False)
            raise
        added.add_done_callback(partial(self._end_if_lost, request))
        return request.generation

    def _check(self, asked: GenerateRequest) -> None:
        check_sampling(asked.sampling)
        config, length = self._config, len(asked.input_ids)
        if not 0 < length < self._max_tokens:
            raise ValueError(self._odd_length(length))
        odd = [token for token in asked.input_ids if not 0 <= token < config.vocab_size]
        if odd:
            raise ValueError(f"token id {odd[0]} is outside 0 to {config.vocab_size - 1}")
        if asked.logprobs is not None:
            check_logprobs(asked.logprobs, prompt_length=length, vocab_size=config.vocab_size)
        if asked.sampling.stop and self._codec is None:
            raise ValueError(
                "stop strings need a tokenizer, and the model has no tokenizer.json; "
                "use stop_token_ids"
            )

    def _odd_length(self, length: int) -> str:
        most, context = self._max_tokens, self._config.max_context
        wanted = f"the prompt has {length} tokens, wanted 1 to {most - 1}, as "
        if most < context:
            return (
                f"{wanted}there is memory for the keys and values of {most} tokens, output "
                "included; start the server with more (--max-total-tokens, --mem-fraction-static)"
            )
        return f"{wanted}the context of {context} must hold the output too"

    def _request(self, asked: GenerateRequest) -> Request:
        length = len(asked.input_ids)
        varies_past = self._config.rope.changes_past
        generation = EmbeddedGeneration(
            asked.rid,
            loop=asyncio.get_running_loop(),
            abort=lambda: self._post(partial(self._scheduler.abort, request)),
            go_on=lambda: self._post(partial(self._scheduler.go_on, request)),
            max_unread=self._max_unread,
        )
        tokens, wanted = list(asked.input_ids), asked.logprobs
        room = self._max_tokens - length
        if wanted is not None:
            room = min(room, scored_room(wanted, prompt_length=length))
        stop_rule = StopRule(
            asked.sampling,
            eos=self._eos(),
            room=room,
            codec=self._codec,
        )
        input_scores = None
        if wanted is not None and wanted.input_start is not None:
            input_scores = InputScores(tokens, length=length, wanted=wanted)
        request = Request(
            generation=generation,
            tokens=tokens,
            prompt_length=length,
            sampler=Sampler(asked.sampling, stop_ids=stop_rule.ids),
            stop_rule=stop_rule,
            reuse=varies_past is None or length <= varies_past,
            logprobs=wanted,
            input_scores=input_scores,
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
        chunk = TokenChunk(token_id=None, stamp=self._scheduler.stamp, finish_reason="error")
        # A closed loop has nobody left who could read it.
        with suppress(RuntimeError):
            generation.loop.call_soon_threadsafe(generation.deliver, chunk)
