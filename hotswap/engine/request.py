"""One request as the engine's thread sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hotswap.engine.batch import Work
from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.kv import KvCache
from hotswap.engine.sampling import Sampler
from hotswap.engine.stopping import StopRule

__all__ = ["Holding", "Request"]


@dataclass(slots=True, kw_only=True)
class Holding:
    """KV of a running request, and under which weights and after which flush it began.

    ``cached`` of its tokens were computed for other texts.
    """

    kv: KvCache
    epoch: int
    flushes: int
    cached: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """``tokens`` are prompt and output; ``holding`` is None while the request waits.

    ``reuse`` says whether its KV may come from, and go to, other texts. One that
    ``is_owed`` memory lost its KV to another, and goes on before anything new starts.
    """

    generation: EmbeddedGeneration
    tokens: list[int]
    prompt_length: int
    sampler: Sampler
    stop_rule: StopRule
    reuse: bool
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

        The last one has to be: there are no logits without it.
        """
        return len(self.tokens) - 1

    @property
    def left(self) -> int:
        """Tokens that have no KV yet: one between two tokens of output, more in prefill."""
        return len(self.tokens) - self.kv.length

    @property
    def kv(self) -> KvCache:
        """Its keys and values; only while it runs."""
        assert self.holding is not None, "a waiting request has no KV"
        return self.holding.kv

    def work(self, count: int) -> Work:
        """What a forward pass over its next ``count`` tokens has to do; only while it runs."""
        past = self.kv.length
        return Work(
            kv=self.kv,
            tokens=self.tokens[past : past + count],
            prompt_length=self.prompt_length,
        )
