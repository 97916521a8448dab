"""One request as the engine's thread sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hotswap.engine.batch import Segment, Work
from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.kv import KvCache
from hotswap.engine.logprobs import InputScores, ScoredRows
from hotswap.engine.sampling import Sampler
from hotswap.engine.stopping import StopRule
from hotswap.seams import LogprobsWanted

__all__ = ["Holding", "Request"]


@dataclass(slots=True, kw_only=True)
class Holding:
    """KV of a running request, and under which weights and after which flush it began.

    ``cached`` of its tokens were computed for other texts. ``is_through`` once the text
    that it began with has been computed.
    """

    kv: KvCache
    epoch: int
    flushes: int
    cached: int = 0
    is_through: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """``tokens`` are prompt and output; ``holding`` is None while the request waits.

    ``reuse`` says whether its KV may come from, and go to, other texts. One that
    ``is_owed`` memory lost its KV to another, and goes on before anything new starts.
    ``input_scores`` is there when log-probabilities of the prompt are wanted.
    """

    generation: EmbeddedGeneration
    tokens: list[int]
    prompt_length: int
    sampler: Sampler
    stop_rule: StopRule
    reuse: bool
    logprobs: LogprobsWanted | None = None
    input_scores: InputScores | None = None
    holding: Holding | None = None
    cached_tokens: int = 0
    num_retractions: int = 0
    is_owed: bool = field(default=False, init=False)
    is_over: bool = field(default=False, init=False)

    @property
    def rid(self) -> str:
        """The client's name for it."""
        return self.generation.rid

    @property
    def is_running(self) -> bool:
        """Whether it has KV; false while it waits, and once it is over."""
        return self.holding is not None

    @property
    def most_cached(self) -> int:
        """How many first tokens need not be computed if their KV is known already.

        The last one has to be: there are no logits without it. Neither are there any
        for a prompt that is scored, from the first token on whose logits count.
        """
        most = len(self.tokens) - 1
        return most if self.input_scores is None else min(most, self.input_scores.skippable)

    @property
    def left(self) -> int:
        """Tokens that have no KV yet: one between two tokens of output, more in prefill."""
        return len(self.tokens) - self.kv.length

    @property
    def kv(self) -> KvCache:
        """Its keys and values; only while it runs."""
        assert self.holding is not None, "a waiting request has no KV"
        return self.holding.kv

    def start(self, holding: Holding) -> None:
        """Run from the first token on, with KV that is empty; perhaps not for the first time."""
        self.holding = holding
        self.is_owed = False
        if self.input_scores is not None:
            self.input_scores.restart()

    def stop(self) -> None:
        """Let go of the KV, and wait for the next start."""
        self.holding = None
        self.num_retractions += 1

    def reserve(self) -> None:
        """Make room in its KV for every token so far; only while it runs."""
        self.kv.reserve(len(self.tokens))

    def work(self, count: int) -> Work:
        """What a forward pass over its next ``count`` tokens has to do; only while it runs."""
        past = self.kv.length
        new = self.tokens[past : past + count]
        return Work(kv=self.kv, tokens=new, prompt_length=self.prompt_length)

    def scored(self, segment: Segment) -> ScoredRows | None:
        """Rows of a batch that score its prompt; before the batch runs."""
        if self.input_scores is None:
            return None
        return self.input_scores.rows(segment.start, segment.stop, past=segment.kv.length)
