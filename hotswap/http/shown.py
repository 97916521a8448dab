"""What the reply to one run shows, and the transcript that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hotswap.http.logprobs import ScoreSheet, TokenDecode
from hotswap.http.transcript import Transcript
from hotswap.seams import GenerateRequest, Generator, LogprobsWanted
from hotswap.types import WeightStamp

__all__ = ["Shown", "decode_of", "transcript_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """``keeps_stop`` shows what stopped a text, ``names_tokens`` texts beside scores."""

    keeps_stop: bool = False
    logprobs: LogprobsWanted | None = None
    names_tokens: bool = False


def decode_of(engine: Generator) -> TokenDecode | None:
    """The engine's ``decode``, or None when it has no tokenizer: text is then empty."""
    try:
        engine.decode(())
    except ValueError:
        return None
    return engine.decode


def transcript_of(
    rid: str,
    request: GenerateRequest,
    shown: Shown,
    *,
    decode: TokenDecode | None,
    stamp: WeightStamp,
    ignored: Sequence[str] = (),
) -> Transcript:
    """An empty one for ``request``, which the client knows as ``rid``."""
    sampling, scores = request.sampling, None
    if shown.logprobs is not None:
        scores = ScoreSheet(shown.logprobs, decode=decode if shown.names_tokens else None)
    skips = sampling.skip_special_tokens
    return Transcript(
        rid=rid,
        prompt_tokens=len(request.input_ids),
        stamp=stamp,
        decode=None if decode is None else partial(decode, skip_special_tokens=skips),
        stops=sampling.stop,
        keeps_stop=shown.keeps_stop,
        min_new_tokens=sampling.min_new_tokens,
        scores=scores,
        ignored=ignored,
    )
