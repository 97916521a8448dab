"""Log-probabilities as SGLang's clients ask for them, and as they read them.

Shapes: one entry is ``[log-probability, token id, text or null]``. The first entry of the
prompt has null for its log-probability, wherever the first is; so has SGLang's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from hotswap.http.errors import RequestInvalid
from hotswap.http.schemas import GenerateBody
from hotswap.seams import LogprobsWanted, TokenChunk, TokenLogprob

__all__ = [
    "MAX_PROMPT_SCORES",
    "ScoreSheet",
    "TokenDecode",
    "check_prompts",
    "logprobs_wanted",
]

T = TypeVar("T")
Entry: TypeAlias = tuple[float | None, int, str | None]

MAX_PROMPT_SCORES = 2**21
"""Log-probabilities of all prompts of one request."""

_encoder = msgspec.json.Encoder()

# JSON has no infinity: this is what a token without any chance gets.
_LEAST = -3.4028234663852886e38


class TokenDecode(Protocol):
    """Text of tokens; see ``Generator.decode``."""

    def __call__(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


def logprobs_wanted(body: GenerateBody, count: int, *, many: bool) -> list[LogprobsWanted | None]:
    """What each of the ``count`` prompts of ``body`` asks for; ``many`` that it is a batch.

    Raises: RequestInvalid for a list that does not fit the prompts.
    """
    spread = _Spread(count, many=many)
    returned = spread("return_logprob", body.return_logprob)
    starts = spread("logprob_start_len", body.logprob_start_len)
    tops = spread("top_logprobs_num", body.top_logprobs_num)
    tokens = _token_ids(body.token_ids_logprob, spread)
    for start in starts:
        if start < -1:
            raise RequestInvalid(f"logprob_start_len is {start}, wanted a position, or -1 for none")
    return [
        LogprobsWanted(input_start=None if start < 0 else start, top=top, token_ids=tuple(ids))
        if wanted
        else None
        for wanted, start, top, ids in zip(returned, starts, tops, tokens, strict=True)
    ]


def check_prompts(runs: Iterable[tuple[int, LogprobsWanted | None]]) -> None:
    """Bound what all prompts of a batch, given by their lengths, are scored for together.

    Raises: RequestInvalid.
    """
    total = sum(
        max(length - wanted.input_start, 0) * (1 + wanted.top + len(wanted.token_ids))
        for length, wanted in runs
        if wanted is not None and wanted.input_start is not None
    )
    if total > MAX_PROMPT_SCORES:
        raise RequestInvalid(
            f"{total} log-probabilities of prompts asked for, samples counted, wanted at most "
            f"{MAX_PROMPT_SCORES} in one request; send several requests"
        )


class _Spread:
    """One value for each prompt, from one for all of them or a list with one for each."""

    def __init__(self, count: int, *, many: bool) -> None:
        self.count = count
        self._many = many

    def __call__(self, name: str, given: T | list[T]) -> list[T]:
        if not isinstance(given, list):
            return [given] * self.count
        if not self._many or len(given) != self.count:
            prompts = f"{self.count} prompts" if self._many else "one prompt that is no list"
            raise RequestInvalid(
                f"{name} is a list of {len(given)} for {prompts}, "
                "wanted one value, or a list with one for each prompt"
            )
        return given


def _token_ids(given: list[int | list[int]] | None, spread: _Spread) -> list[list[int]]:
    """A plain list of ids is for every prompt."""
    shared = [one for one in given or [] if isinstance(one, int)]
    own = [one for one in given or [] if isinstance(one, list)]
    if shared and own:
        raise RequestInvalid(
            "token_ids_logprob has token ids beside lists of them, wanted one list of ids, "
            "or a list of such lists"
        )
    return spread("token_ids_logprob", own) if own else [shared] * spread.count


class ScoreSheet:
    """Collects the log-probabilities of one request.

    ``decode`` gives the text of tokens; without it texts are null.
    """

    def __init__(self, wanted: LogprobsWanted, *, decode: TokenDecode | None = None) -> None:
        self._wanted = wanted
        self._decode = decode
        self._texts: dict[int, str] = {}
        self._inputs = _Columns(wanted)
        self._outputs = _Columns(wanted)
        self.output_total: float = 0.0

    def __repr__(self) -> str:
        return f"<ScoreSheet {len(self._inputs.tokens)} in, {len(self._outputs.tokens)} out>"

    def add(self, chunk: TokenChunk) -> None:
        """Take what a chunk has of them."""
        for number, one in enumerate(chunk.input_logprobs):
            self._inputs.add(one, self._entry, is_known=number > 0)
        if chunk.logprob is not None:
            self._outputs.add(chunk.logprob, self._entry)
            self.output_total += max(chunk.logprob.logprob or 0.0, _LEAST)

    def meta(self) -> dict[str, object]:
        """The keys that they have in ``meta_info``."""
        return {**self._inputs.meta("input"), **self._outputs.meta("output")}

    def _entry(self, token_id: int, logprob: float | None) -> Entry:
        value = None if logprob is None else max(logprob, _LEAST)
        return value, token_id, None if self._decode is None else self._text(token_id)

    def _text(self, token_id: int) -> str:
        assert self._decode is not None, "texts are not wanted"
        if token_id not in self._texts:
            self._texts[token_id] = self._decode([token_id], skip_special_tokens=False)
        return self._texts[token_id]


class _Columns:
    """The lists of either the prompt or the output, one item a token.

    Items are encoded once: each event of a stream has all of them again.
    """

    def __init__(self, wanted: LogprobsWanted) -> None:
        self._wanted = wanted
        self.tokens: list[msgspec.Raw] = []
        self._tops: list[msgspec.Raw] = []
        self._asked: list[msgspec.Raw] = []

    def add(
        self,
        one: TokenLogprob,
        entry: Callable[[int, float | None], Entry],
        *,
        is_known: bool = True,
    ) -> None:
        """Without ``is_known`` the token stands there, and what is known of it does not."""
        self.tokens.append(_item(entry(one.token_id, one.logprob if is_known else None)))
        if self._wanted.top:
            self._tops.append(_item(_entries(one.top, entry) if is_known else None))
        if self._wanted.token_ids:
            self._asked.append(_item(_entries(one.asked, entry) if is_known else None))

    def meta(self, prefix: str) -> dict[str, object]:
        columns: dict[str, object] = {f"{prefix}_token_logprobs": self.tokens}
        if self._wanted.top:
            columns[f"{prefix}_top_logprobs"] = self._tops
        if self._wanted.token_ids:
            columns[f"{prefix}_token_ids_logprobs"] = self._asked
        return columns


def _item(value: Entry | list[Entry] | None) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(value))


def _entries(
    pairs: Iterable[tuple[int, float]], entry: Callable[[int, float | None], Entry]
) -> list[Entry]:
    return [entry(token_id, logprob) for token_id, logprob in pairs]
