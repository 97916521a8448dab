"""When a text is finished, and why."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import partial

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

    ``room`` is how many there is place for. A stop string may begin in one
    token and end in another; it counts from the token that completes it. Before
    ``min_new_tokens`` only the room ends a text.
    """

    def __init__(
        self, params: SamplingParams, *, eos: Set[int], room: int, codec: TextCodec | None
    ) -> None:
        self.ids: frozenset[int] = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else frozenset(eos)
        )
        self._left = min(params.max_new_tokens, room)
        self._unstoppable = params.min_new_tokens
        self._stops = params.stop
        self._keep = max(map(len, params.stop), default=1) - 1
        self._stream: StreamedText | None = None
        if codec is not None and params.stop:
            skips = params.skip_special_tokens
            self._stream = StreamedText(partial(codec.decode, skip_special_tokens=skips))
        self._tail = ""

    @property
    def wants_none(self) -> bool:
        """Whether not even one token was asked for, or all of them are there."""
        return self._left <= 0

    def push(self, token_id: int) -> Finish | None:
        """Count ``token_id``; the reason to end after it, None to go on."""
        self._left -= 1
        self._unstoppable -= 1
        matched = self._match(token_id)
        if self._unstoppable <= 0:
            if token_id in self.ids:
                return Finish(reason="stop", matched=token_id)
            if matched is not None:
                return Finish(reason="stop", matched=matched)
        return Finish(reason="length") if self._left <= 0 else None

    def _match(self, token_id: int) -> str | None:
        """Of the stop strings that this token completes, the one that begins first."""
        if self._stream is None:
            return None
        known = len(self._tail)
        text = self._tail + self._stream.push(token_id)
        # One that had its end before was passed over, or the text would have ended there.
        places = [(text.find(stop, max(0, known - len(stop) + 1)), stop) for stop in self._stops]
        found = [place for place in places if place[0] >= 0]
        self._tail = text[max(0, len(text) - self._keep) :]
        return min(found)[1] if found else None
