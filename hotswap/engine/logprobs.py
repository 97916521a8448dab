"""How likely tokens were: log-probabilities of what was put out, and of a prompt.

Rules: natural logarithms, in float32, before penalties and whatever cuts the choice.
Output is scored at the request's temperature, as trainers compare it with their own; a
prompt at 1. A prompt is scored while it is computed: the logits after one position
score the token at the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hotswap.seams import LogprobsWanted, TokenLogprob

__all__ = ["InputScores", "ScoredRows", "check_logprobs", "score", "score_chosen", "scored_room"]

MAX_TOP = 128
MAX_TOKEN_IDS = 1024
MAX_INPUT_SCORES = 2**21
"""Log-probabilities of the prompt of one request."""

MAX_SCORES = 2**22
"""Those of its output too. Each is some 25 bytes of the reply, which is held until its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRows:
    """Rows of a batch whose logits ``take`` wants, in order, however they are cut."""

    rows: slice
    take: Callable[[torch.Tensor], None]


def check_logprobs(wanted: LogprobsWanted, *, prompt_length: int, vocab_size: int) -> None:
    """Raises: ValueError for what cannot be scored, or a prompt of more than a reply may hold."""
    start = wanted.input_start
    if start is not None and not 0 <= start <= prompt_length:
        raise ValueError(
            f"log-probabilities are asked for from input position {start} on, wanted 0 to "
            f"{prompt_length}, which is the length of the prompt"
        )
    if not 0 <= wanted.top <= MAX_TOP:
        raise ValueError(f"{wanted.top} top log-probabilities asked for, wanted 0 to {MAX_TOP}")
    if len(wanted.token_ids) > MAX_TOKEN_IDS:
        raise ValueError(
            f"log-probabilities of {len(wanted.token_ids)} token ids asked for, wanted at most "
            f"{MAX_TOKEN_IDS}"
        )
    odd = [token for token in wanted.token_ids if not 0 <= token < vocab_size]
    if odd:
        raise ValueError(
            f"the log-probability of token id {odd[0]} is asked for, wanted 0 to {vocab_size - 1}"
        )
    scores = _input_scores(wanted, prompt_length)
    if scores > MAX_INPUT_SCORES:
        raise ValueError(
            f"{scores} log-probabilities of the prompt asked for, wanted at most "
            f"{MAX_INPUT_SCORES}; ask for fewer a token, or from a later position on"
        )


def scored_room(wanted: LogprobsWanted, *, prompt_length: int) -> int:
    """How many output tokens a reply has place for; their text ends there, as at the context.

    What a request could produce at worst is no reason to refuse it: most end long before.
    """
    return (MAX_SCORES - _input_scores(wanted, prompt_length)) // _a_token(wanted)


def _input_scores(wanted: LogprobsWanted, prompt_length: int) -> int:
    start = wanted.input_start
    return 0 if start is None else (prompt_length - start) * _a_token(wanted)


def _a_token(wanted: LogprobsWanted) -> int:
    return 1 + wanted.top + len(wanted.token_ids)


class InputScores:
    """Log-probabilities of a prompt from ``wanted.input_start`` on, collected as it is computed.

    Engine thread only. ``tokens`` may go on past the prompt, which has ``length``.
    """

    def __init__(self, tokens: Sequence[int], *, length: int, wanted: LogprobsWanted) -> None:
        assert wanted.input_start is not None, "no input position was asked for"
        self._tokens = tokens
        self._length = length
        self._start = wanted.input_start
        self._wanted = wanted
        self._scores: list[TokenLogprob] = []
        self._is_delivered = False
        self.restart()

    def __repr__(self) -> str:
        return f"<InputScores {len(self._scores)} of {self._length - self._start}>"

    @property
    def skippable(self) -> int:
        """How many tokens at the start of the prompt need not be computed for this."""
        return len(self._tokens) if self._is_delivered else max(self._start - 1, 0)

    def restart(self) -> None:
        """The prompt is computed again from its start, unless everything was delivered."""
        self._scores.clear()
        if self._start == 0 and not self._is_delivered:
            # Nothing comes before it that could make it likely.
            self._scores.append(TokenLogprob(token_id=self._tokens[0], logprob=None))

    def rows(self, start: int, stop: int, *, past: int) -> ScoredRows | None:
        """Those that are wanted of a batch's rows ``start:stop``, which come after ``past``."""
        if self._is_delivered:
            return None
        first = start + max(self.skippable - past, 0)
        # What comes after the last token of the prompt is output.
        last = min(start + self._length - 1 - past, stop)
        return ScoredRows(rows=slice(first, last), take=self.take) if first < last else None

    def take(self, logits: torch.Tensor) -> None:
        """The next rows, ``[rows x vocabulary]``."""
        at = self._start + len(self._scores)
        tokens = self._tokens[at : at + logits.shape[0]]
        self._scores.extend(score(logits, tokens, [self._wanted] * len(tokens)))

    def deliver(self) -> tuple[TokenLogprob, ...]:
        """All of them, once; nothing before the prompt is through, nor afterwards."""
        if self._is_delivered or len(self._scores) < self._length - self._start:
            return ()
        self._is_delivered = True
        scores, self._scores = tuple(self._scores), []
        return scores


def score_chosen(
    logits: torch.Tensor,
    tokens: Sequence[object],
    wanted: Sequence[LogprobsWanted | None],
    *,
    temperatures: Sequence[float],
) -> list[TokenLogprob | None]:
    """How likely each token is that ``choose_tokens`` gave, for those who asked for it."""
    scores: list[TokenLogprob | None] = [None] * len(tokens)
    asked = [
        (row, token, one)
        for row, (token, one) in enumerate(zip(tokens, wanted, strict=True))
        if one is not None and isinstance(token, int)
    ]
    if asked:
        rows = [row for row, _, _ in asked]
        scales = torch.tensor([temperatures[row] for row in rows], device=logits.device)
        scaled = logits[rows].float() / scales[:, None]
        found = score(scaled, [token for _, token, _ in asked], [one for *_, one in asked])
        for row, one in zip(rows, found, strict=True):
            scores[row] = one
    return scores


def score(
    logits: torch.Tensor, tokens: Sequence[int], wanted: Sequence[LogprobsWanted]
) -> list[TokenLogprob]:
    """How likely each of ``tokens`` is under its row of ``[rows x vocabulary]``."""
    if not tokens:
        return []
    likely = logits.float().log_softmax(-1)
    targets = torch.tensor(tokens, device=likely.device)
    of_tokens: list[float] = likely.gather(1, targets[:, None])[:, 0].tolist()
    tops = _tops(likely, min(max(one.top for one in wanted), likely.shape[1]))
    return [
        TokenLogprob(
            token_id=token,
            logprob=of_tokens[row],
            top=tops[row][: one.top],
            asked=_asked(likely[row], one.token_ids),
        )
        for row, (token, one) in enumerate(zip(tokens, wanted, strict=True))
    ]


def _tops(likely: torch.Tensor, count: int) -> list[tuple[tuple[int, float], ...]]:
    """Of each row the ``count`` likeliest tokens, the likeliest first."""
    if not count:
        return [()] * likely.shape[0]
    values, ids = likely.topk(count)
    return [
        tuple(zip(row_ids, row_values, strict=True))
        for row_ids, row_values in zip(ids.tolist(), values.tolist(), strict=True)
    ]


def _asked(likely: torch.Tensor, ids: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
    if not ids:
        return ()
    return tuple(zip(ids, likely[list(ids)].tolist(), strict=True))
