"""Counts of what the scheduler has done, from its start on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tally"]


@dataclass(slots=True, kw_only=True)
class Tally:
    """Written on the engine's thread, read on any: each is one number that only grows.

    The fields are those of ``types.EngineLoad``.
    """

    cache_hits: int = 0
    cache_misses: int = 0
    cache_hit_tokens: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    retractions: int = 0

    def count_start(self, cached: int) -> None:
        """A request began, with ``cached`` tokens of the prefix cache."""
        self.cache_hits += cached > 0
        self.cache_misses += cached == 0
        self.cache_hit_tokens += cached
