"""One request as the engine's thread sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hotswap.engine.batch import Work
from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.kv import KvCache
from hotswap.engine.sampling import Sampler
from hotswap.engine.stopping import StopRule

__all__ = ["Holding", "Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """KV of a running request, and under which weights and after which flush it began."""

    kv: KvCache
    epoch: int
    flushes: int


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """``tokens`` are prompt and output; ``holding`` is None while the request waits.

    ``reuse`` says whether its KV may come from, and go to, the prefix cache.
    """

    generation: EmbeddedGeneration
    tokens: list[int]
    prompt_length: int
    sampler: Sampler
    stop_rule: StopRule
    reuse: bool
    holding: Holding | None = None
    cached_tokens: int | None = None
    num_retractions: int = 0
    is_over: bool = field(default=False, init=False)

    @property
    def rid(self) -> str:
        """The client's name for it."""
        return self.generation.rid

    @property
    def is_running(self) -> bool:
        """Whether it has KV; false while it waits, and once it is over."""
        return self.holding is not None

    def reserve(self) -> None:
        """Make room in its KV for every token so far; only while it runs."""
        assert self.holding is not None, "a waiting request has no KV to make room in"
        self.holding.kv.reserve(len(self.tokens))

    def work(self) -> Work:
        """What the next forward pass has to do; only while it runs."""
        assert self.holding is not None, "a waiting request has no KV to work on"
        kv = self.holding.kv
        new: Sequence[int] = self.tokens[kv.length :]
        return Work(kv=kv, tokens=new, prompt_length=self.prompt_length)
