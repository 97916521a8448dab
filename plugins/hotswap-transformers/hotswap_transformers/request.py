"""One request as the engine's thread sees it."""

from __future__ import annotations

from dataclasses import dataclass

from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.sampling import Sampler
from hotswap.engine.stopping import StopRule
from hotswap.seams import LogprobsWanted

__all__ = ["Request"]


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """``tokens`` are prompt and output; transformers has it while ``is_running``.

    ``is_fresh`` until the first token since its start; ``cached_tokens`` of it were in
    the cache then.
    """

    generation: EmbeddedGeneration
    tokens: list[int]
    sampler: Sampler
    stop_rule: StopRule
    logprobs: LogprobsWanted | None = None
    cached_tokens: int = 0
    num_retractions: int = 0
    is_running: bool = False
    is_fresh: bool = False
    is_over: bool = False

    @property
    def rid(self) -> str:
        """The client's name for it."""
        return self.generation.rid
