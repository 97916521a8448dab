"""Requests for the embedded engine."""

from __future__ import annotations

from collections.abc import Callable

from hotswap.engine.config import ModelConfig
from hotswap.engine.door import RequestDoor
from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.in_flight import InFlightLedger
from hotswap.engine.logprobs import InputScores, scored_room
from hotswap.engine.loop import EngineLoop
from hotswap.engine.request import Request
from hotswap.engine.sampling import Sampler
from hotswap.engine.scheduler import Scheduler
from hotswap.engine.stopping import StopRule
from hotswap.engine.tokenizer import TextCodec
from hotswap.seams import GenerateRequest

__all__ = ["Intake"]


class Intake(RequestDoor[Request]):
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
        """See :class:`RequestDoor` for the bounds."""
        super().__init__(
            scheduler=scheduler,
            loop=loop,
            ledger=ledger,
            codec=codec,
            vocab_size=config.vocab_size,
            max_context=config.max_context,
            max_tokens=max_tokens,
            max_unread=max_unread,
            eos=eos,
        )
        self._rope = config.rope

    def _request(self, asked: GenerateRequest, generation: EmbeddedGeneration) -> Request:
        length = len(asked.input_ids)
        varies_past = self._rope.changes_past
        tokens, wanted = list(asked.input_ids), asked.logprobs
        room = self._max_tokens - length
        if wanted is not None:
            room = min(room, scored_room(wanted, prompt_length=length))
        stop_rule = StopRule(asked.sampling, eos=self._eos(), room=room, codec=self._codec)
        input_scores = None
        if wanted is not None and wanted.input_start is not None:
            input_scores = InputScores(tokens, length=length, wanted=wanted)
        return Request(
            generation=generation,
            tokens=tokens,
            prompt_length=length,
            sampler=Sampler(asked.sampling, stop_ids=stop_rule.ids),
            stop_rule=stop_rule,
            reuse=varies_past is None or length <= varies_past,
            logprobs=wanted,
            input_scores=input_scores,
        )
