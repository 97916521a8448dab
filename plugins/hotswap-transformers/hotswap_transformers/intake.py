"""Requests for the engine."""

from __future__ import annotations

from hotswap.engine.door import RequestDoor
from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.sampling import Sampler
from hotswap.engine.stopping import StopRule
from hotswap.seams import GenerateRequest, LogprobsWanted
from hotswap_transformers.request import Request

__all__ = ["Intake"]


class Intake(RequestDoor[Request]):
    """Turns what a client asks for into requests of the scheduler. Event-loop thread."""

    def _check_logprobs(self, wanted: LogprobsWanted, *, prompt_length: int) -> None:
        if wanted.input_start is not None:
            raise ValueError(
                "this engine scores output tokens only; leave out the log-probabilities of "
                "the prompt, or serve with the embedded engine"
            )
        super()._check_logprobs(wanted, prompt_length=prompt_length)

    def _request(self, asked: GenerateRequest, generation: EmbeddedGeneration) -> Request:
        stop_rule = StopRule(
            asked.sampling,
            eos=self._eos(),
            room=self._max_tokens - len(asked.input_ids),
            codec=self._codec,
        )
        return Request(
            generation=generation,
            tokens=list(asked.input_ids),
            sampler=Sampler(asked.sampling, stop_ids=stop_rule.ids),
            stop_rule=stop_rule,
            logprobs=asked.logprobs,
        )
