"""When a text is finished, and why."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from hotswap.engine.tokenizer import TextCodec
from hotswap.seams import SamplingParams
from hotswap.streamed_text import StreamedText

__all__ = ["Finish", "StopRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Why a text ended: ``stop`` (with what matched) or ``length``."""

    reason: str
    matched: int | str | None = None


class StopRule:
    """Sees the output tokens of one request, one by one.

    ``room`` is how many the context has place for. A stop string may begin in one
    token and end in another; it counts from the token that completes it.
    """

    def __init__(
        self, params: SamplingParams, *, eos: Set[int], room: int, codec: TextCodec | None
    ) -> None:
        self._ids = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else frozenset(eos)
        )
        self._left = min(params.max_new_tokens, room)
        self._stops = params.stop
        self._keep = max(map(len, params.stop), default=1) - 1
        self._stream = StreamedText(codec.decode) if codec is not None and params.stop else None
        self._tail = ""

    def push(self, token_id: int) -> Finish | None:
        """Count ``token_id``; the reason to end after it, None to go on."""
        self._left -= 1
        if token_id in self._ids:
            return Finish(reason="stop", matched=token_id)
        matched = self._match(token_id)
        if matched is not None:
            return Finish(reason="stop", matched=matched)
        return Finish(reason="length") if self._left <= 0 else None

    def _match(self, token_id: int) -> str | None:
        """The stop string that begins first in the text, of those that are complete."""
        if self._stream is None:
            return None
        text = self._tail + self._stream.push(token_id)
        found = [(text.index(stop), stop) for stop in self._stops if stop in text]
        self._tail = text[max(0, len(text) - self._keep) :]
        return min(found)[1] if found else None
