"""One sample of one prompt while it runs, and everything of it that a reply shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hotswap.http.in_flight import Ticket
from hotswap.http.transcript import Transcript
from hotswap.http.transcription import check_end
from hotswap.seams import Generation, TokenChunk, TokenLogprob

__all__ = ["Choice", "News", "Prompt", "summary", "usage"]

_VERSIONS = ("weight_version", "weight_version_start", "weight_version_end", "weight_epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids, and the text that an echo puts in front of the reply."""

    input_ids: Sequence[int]
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one chunk added to a choice."""

    text: str
    logprobs: tuple[TokenLogprob, ...]
    is_end: bool


class Choice:
    """Reads ``generation`` to its end; ``index`` is its place in the reply."""

    def __init__(
        self,
        *,
        index: int,
        ticket: Ticket,
        generation: Generation,
        transcript: Transcript,
        prompt: Prompt,
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.transcript = transcript
        self.input_logprobs: tuple[TokenLogprob, ...] = ()
        self.logprobs: list[TokenLogprob] = []
        self._ticket = ticket
        self._generation = generation
        self._shown = 0

    def __repr__(self) -> str:
        return f"<Choice {self.index} {self.transcript!r}>"

    async def read(self, tell: Callable[[News], Awaitable[None]] | None = None) -> None:
        """Take every chunk, and ``tell`` what it brought. Raises: as ``check_end``."""
        async for chunk in self._generation:
            self._ticket.ended = chunk.finish_reason is not None
            self.transcript.add(chunk, stream=tell is not None)
            scored = self._scored(chunk)
            if tell is not None and chunk.finish_reason != "error":
                await tell(self._news(scored))
        check_end(self._ticket.rid, self.transcript)

    @property
    def text(self) -> str:
        """The text so far, without what may still become a stop string."""
        return str(self.transcript.reply()["text"])

    @property
    def meta(self) -> dict[str, Any]:
        """``meta_info`` of ``/generate``."""
        meta = self.transcript.reply()["meta_info"]
        assert isinstance(meta, dict)
        return meta

    @property
    def metadata(self) -> dict[str, object]:
        """Which weights wrote it: first and last version, and the spans between."""
        meta = self.meta
        names = [*_VERSIONS, "weight_versions", *(["ignored"] if "ignored" in meta else [])]
        return {name: meta[name] for name in names}

    def _scored(self, chunk: TokenChunk) -> tuple[TokenLogprob, ...]:
        if chunk.input_logprobs:
            self.input_logprobs = chunk.input_logprobs
        if chunk.logprob is None:
            return chunk.input_logprobs
        self.logprobs.append(chunk.logprob)
        return (*chunk.input_logprobs, chunk.logprob)

    def _news(self, scored: tuple[TokenLogprob, ...]) -> News:
        text = self.text
        new, self._shown = text[self._shown :], max(self._shown, len(text))
        return News(text=new, logprobs=scored, is_end=self.transcript.finish is not None)


def usage(choices: Sequence[Choice], *, samples: int) -> dict[str, object]:
    """Tokens of all of them; the ``samples`` of a prompt share it."""
    metas = [choice.meta for choice in choices]
    prompt = sum(meta["prompt_tokens"] for meta in metas[::samples])
    completion = sum(meta["completion_tokens"] for meta in metas)
    cached = sum(meta["cached_tokens"] for meta in metas[::samples])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def summary(choices: Sequence[Choice]) -> dict[str, object]:
    """``metadata`` of a whole reply: of its one choice, or first and last over all of them."""
    if len(choices) == 1:
        return choices[0].metadata
    metas = [choice.meta for choice in choices]
    first, last = min(metas, key=_first_epoch), max(metas, key=lambda meta: meta["weight_epoch"])
    return {
        "weight_version": last["weight_version"],
        "weight_version_start": first["weight_version_start"],
        "weight_version_end": last["weight_version_end"],
        "weight_epoch": last["weight_epoch"],
    }


def _first_epoch(meta: dict[str, Any]) -> int:
    spans = meta["weight_versions"]
    return int(spans[0].weight_epoch if spans else meta["weight_epoch"])
