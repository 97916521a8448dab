"""Generation requests: how they end, their tokens, and how long tokens take."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry, Counter, Histogram

from hotswap.foreign import contained
from hotswap.seams import Generation, TokenChunk

__all__ = ["RequestMetrics", "WatchedGeneration"]

_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_NEXT_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)


class RequestMetrics:
    """Instruments of the requests that reach the engine. Event-loop thread only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self.closing = False
        self._ended = counter(
            "hotswap_requests_total",
            "Generation requests by how they ended: stop, length, abort or error.",
            "outcome",
        )
        self._aborted = counter(
            "hotswap_requests_aborted_total",
            "Aborted generation requests by who ended them: client, engine (a pause or an "
            "update) or shutdown.",
            "cause",
        )
        self._prompt = counter("hotswap_prompt_tokens_total", "Prompt tokens of all requests.")
        self._output = counter("hotswap_output_tokens_total", "Output tokens sent on to clients.")
        self._hits = counter(
            "hotswap_prefix_cache_hits_total", "Requests that began with cached tokens."
        )
        self._misses = counter(
            "hotswap_prefix_cache_misses_total", "Requests that began without cached tokens."
        )
        self._hit_tokens = counter(
            "hotswap_prefix_cache_hit_tokens_total", "Prompt tokens that came from the cache."
        )
        self._first = Histogram(
            "hotswap_time_to_first_token_seconds",
            "From a request's way into the engine to its first token.",
            buckets=_FIRST_TOKEN_S,
            registry=registry,
        )
        self._next = Histogram(
            "hotswap_time_per_output_token_seconds",
            "Mean time between a request's tokens after the first, one observation a request.",
            buckets=_NEXT_TOKEN_S,
            registry=registry,
        )
        for outcome in ("stop", "length", "abort", "error"):
            self._ended.labels(outcome)
        for cause in ("client", "engine", "shutdown"):
            self._aborted.labels(cause)

    def __repr__(self) -> str:
        return f"<RequestMetrics{' closing' if self.closing else ''}>"

    def watch(self, generation: Generation, *, prompt_tokens: int) -> Generation:
        """``generation``, counted while it is read."""
        self._prompt.inc(prompt_tokens)
        return WatchedGeneration(generation, self)

    def note_first(self, *, cached_tokens: int, after_s: float) -> None:
        """A request's first token came."""
        self._first.observe(after_s)
        (self._hits if cached_tokens else self._misses).inc()
        self._hit_tokens.inc(cached_tokens)

    def note_token(self) -> None:
        """A token came."""
        self._output.inc()

    def note_end(self, outcome: str, *, cause: str = "engine", per_token_s: float | None) -> None:
        """A request ended. ``per_token_s`` is None for one with fewer than two tokens."""
        self._ended.labels(outcome).inc()
        if outcome == "abort":
            self._aborted.labels(cause).inc()
        if per_token_s is not None:
            self._next.observe(per_token_s)


class WatchedGeneration:
    """A generation that is counted once, at its end or when it is aborted."""

    def __init__(self, inner: Generation, metrics: RequestMetrics) -> None:
        self._inner = inner
        self._chunks = aiter(inner)
        self._metrics = metrics
        self._began = time.perf_counter()
        self._first = self._last = 0.0
        self._tokens = 0
        self._counted = False

    def __repr__(self) -> str:
        return f"<WatchedGeneration {self._inner!r}>"

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        """The next chunk of the generation itself."""
        with contained("the engine"):
            chunk = await anext(self._chunks)
        if chunk.token_id is not None:
            self._note_token(chunk)
        if chunk.finish_reason is not None:
            self._note_end(chunk.finish_reason, "engine")
        return chunk

    def abort(self) -> None:
        """Ask for the end. Nobody may read on, so it counts here."""
        self._inner.abort()
        self._note_end("abort", "shutdown" if self._metrics.closing else "client")

    def _note_token(self, chunk: TokenChunk) -> None:
        self._last = time.perf_counter()
        if not self._tokens:
            self._first = self._last
            self._metrics.note_first(
                cached_tokens=chunk.cached_tokens, after_s=self._first - self._began
            )
        self._tokens += 1
        self._metrics.note_token()

    def _note_end(self, outcome: str, cause: str) -> None:
        if self._counted:
            return
        self._counted = True
        spans = self._tokens - 1
        per_token_s = (self._last - self._first) / spans if spans > 0 else None
        self._metrics.note_end(outcome, cause=cause, per_token_s=per_token_s)
