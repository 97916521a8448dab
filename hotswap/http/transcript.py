"""What one request has produced so far, and its ``meta_info``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from hotswap.http.logprobs import ScoreSheet
from hotswap.http.spans import Spans
from hotswap.seams import TokenChunk
from hotswap.streamed_text import StopFilter, StreamedText, cut_at_stop
from hotswap.types import WeightStamp

__all__ = ["Decode", "Transcript", "finish_reason"]

Decode: TypeAlias = Callable[[Sequence[int]], str]

_ABORTED = "the request was aborted"
# SGLang's words for a request that had written nothing; clients compare them.
_ABORTED_EARLY = "Abort in waiting queue"


class Transcript:
    """Collects the chunks of one generation.

    ``stamp`` is what the weights were when the request was admitted: it labels a
    request that ends before its first token. ``ignored`` names fields of the request
    that had no effect; ``meta_info`` repeats them. ``abort_message`` tells the client
    why a request was aborted. What stopped a text is not part of it, unless it
    ``keeps_stop``; ``stops`` that are complete before ``min_new_tokens`` stop nothing.
    ``scores`` collects log-probabilities.
    """

    def __init__(
        self,
        *,
        rid: str,
        prompt_tokens: int,
        stamp: WeightStamp,
        decode: Decode | None,
        stops: Sequence[str] = (),
        keeps_stop: bool = False,
        min_new_tokens: int = 0,
        scores: ScoreSheet | None = None,
        ignored: Sequence[str] = (),
    ) -> None:
        self._rid = rid
        self._prompt_tokens = prompt_tokens
        self._first = self._last = stamp
        self._decode = decode
        self._showable = StopFilter(() if keeps_stop else stops)
        self._keeps_stop = keeps_stop
        self._min_new_tokens = min_new_tokens
        self._scores = scores
        self._ignored = ignored
        self._spans = Spans()
        self._streamed = StreamedText(decode) if decode is not None else None
        self._end: TokenChunk | None = None
        self._cached_tokens = 0
        self._num_retractions = 0
        self._started = time.perf_counter()
        self.abort_message: str | None = None
        self.output_ids: list[int] = []

    def __repr__(self) -> str:
        ended = "running" if self._end is None else str(self._end.finish_reason)
        return f"<Transcript {self._rid} {len(self.output_ids)} tokens {ended}>"

    @property
    def finish(self) -> str | None:
        """The finish reason, None while tokens still come."""
        return None if self._end is None else self._end.finish_reason

    @property
    def error(self) -> str | None:
        """Why the engine ended it with ``error``; None where it does not say."""
        return None if self._end is None else self._end.error

    @property
    def score(self) -> float | None:
        """The log-probabilities of the output tokens, added up; None if nobody asked."""
        return None if self._scores is None else self._scores.output_total

    def add(self, chunk: TokenChunk, *, stream: bool = False) -> None:
        """Take a chunk. ``stream`` also decodes it, for ``reply`` before the end."""
        self._cached_tokens = max(self._cached_tokens, chunk.cached_tokens)
        self._num_retractions = max(self._num_retractions, chunk.num_retractions)
        if chunk.token_id is not None:
            if not self.output_ids:
                self._first = chunk.stamp
            self.output_ids.append(chunk.token_id)
            self._spans.add(chunk.stamp)
            self._last = chunk.stamp
            if stream and self._streamed is not None:
                stops = len(self.output_ids) >= self._min_new_tokens
                self._showable.push(self._streamed.push(chunk.token_id), stops=stops)
        elif not self.output_ids:
            self._first = self._last = chunk.stamp
        if self._scores is not None:
            self._scores.add(chunk)
        if chunk.finish_reason is not None:
            self._end = chunk

    def reply(self) -> dict[str, object]:
        """The body of a reply or of a stream event: everything so far."""
        return {
            "text": self._whole_text() if self._end is not None else self._text_so_far(),
            "output_ids": self.output_ids,
            "meta_info": self._meta(),
        }

    def _text_so_far(self) -> str:
        return "" if self._streamed is None else self._streamed.text[: self._showable.length]

    def _whole_text(self) -> str:
        """Text of all tokens; what stopped the request is not part of it, unless kept."""
        if self._decode is None or self._end is None:
            return ""
        ids, matched = self.output_ids, self._end.matched_stop
        if self._keeps_stop:
            return self._decode(ids)
        if isinstance(matched, int) and ids and ids[-1] == matched:
            ids = ids[:-1]
        text = self._decode(ids)
        if not isinstance(matched, str):
            return text
        return cut_at_stop(text, matched, passed=self._passed(self._decode))

    def _passed(self, decode: Decode) -> int:
        """Characters of the text before which nothing could stop it."""
        streamed = StreamedText(decode)
        for token_id in self.output_ids[: max(self._min_new_tokens - 1, 0)]:
            streamed.push(token_id)
        return len(streamed.text)

    def _meta(self) -> dict[str, object]:
        ignored = {"ignored": self._ignored} if self._ignored else {}
        return {
            "id": self._rid,
            "finish_reason": finish_reason(
                self._end, len(self.output_ids), abort_message=self.abort_message
            ),
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": len(self.output_ids),
            "cached_tokens": self._cached_tokens,
            "num_retractions": self._num_retractions,
            "e2e_latency": time.perf_counter() - self._started,
            "weight_version": self._last.version,
            "weight_version_start": self._first.version,
            "weight_version_end": self._last.version,
            "weight_versions": self._spans.all(),
            "weight_epoch": self._last.epoch,
            **({} if self._scores is None else self._scores.meta()),
            **ignored,
        }


def finish_reason(
    end: TokenChunk | None, num_tokens: int, *, abort_message: str | None = None
) -> dict[str, object] | None:
    """SGLang's form of a finish reason; None while the request runs."""
    if end is None:
        return None
    match end.finish_reason:
        case "length":
            return {"type": "length", "length": num_tokens}
        case "stop":
            return {"type": "stop", "matched": end.matched_stop}
        case "abort":
            message = abort_message or (_ABORTED if num_tokens else _ABORTED_EARLY)
            return {"type": "abort", "message": message, "status_code": None, "err_type": None}
        case other:
            return {"type": other}
