"""Log-probabilities in the two forms that OpenAI has for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from hotswap.seams import TokenLogprob
from hotswap.streamed_text import StreamedText

__all__ = ["ChatScores", "CompletionScores", "Scores", "TokenNames"]

# JSON has no infinity.
_LEAST = -9999.0
_INCOMPLETE = "\ufffd"


class _Decode(Protocol):
    def __call__(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


class TokenNames:
    """What a token is called: its text, or ``token_id:7`` where a part of a character has none."""

    def __init__(self, decode: _Decode | None) -> None:
        self._decode = decode

    def __repr__(self) -> str:
        return f"<TokenNames {'by id' if self._decode is None else 'by text'}>"

    def __call__(self, token_id: int) -> str:
        """The name of ``token_id``."""
        text = "" if self._decode is None else self._decode([token_id], skip_special_tokens=False)
        return f"token_id:{token_id}" if not text or _INCOMPLETE in text else text

    def prefix(self, token_ids: Sequence[int]) -> str:
        """The text of several tokens as a reply shows it."""
        return "" if self._decode is None else self._decode(token_ids)


class Scores(Protocol):
    """Turns scored tokens, in their order, into a ``logprobs`` object."""

    def add(self, tokens: Iterable[TokenLogprob]) -> dict[str, object]:
        """The object for ``tokens``, which follow those of the calls before."""
        ...


class ChatScores:
    """``{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}``."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names

    def __repr__(self) -> str:
        return f"<ChatScores {self._names!r}>"

    def add(self, tokens: Iterable[TokenLogprob]) -> dict[str, object]:
        """See ``Scores``."""
        content = [
            self._entry(token.token_id, token.logprob)
            | {"top_logprobs": [self._entry(*pair) for pair in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float | None) -> dict[str, object]:
        name = self._names(token_id)
        is_text = name != f"token_id:{token_id}"
        encoded = list(name.encode()) if is_text else None
        return {"token": name, "logprob": _finite(logprob), "bytes": encoded}


class CompletionScores:
    """``{"tokens", "token_logprobs", "top_logprobs", "text_offset"}``, one entry a token."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._text = StreamedText(names.prefix)

    def __repr__(self) -> str:
        return f"<CompletionScores {self._names!r}>"

    def add(self, tokens: Iterable[TokenLogprob]) -> dict[str, object]:
        """See ``Scores``; offsets count characters from the beginning of the text."""
        scored = list(tokens)
        return {
            "tokens": [self._names(token.token_id) for token in scored],
            "token_logprobs": [_finite(token.logprob) for token in scored],
            "top_logprobs": [self._top(token) for token in scored],
            "text_offset": [self._offset(token.token_id) for token in scored],
        }

    def _top(self, token: TokenLogprob) -> dict[str, float | None] | None:
        if token.logprob is None:
            return None
        return {self._names(token_id): _finite(value) for token_id, value in token.top}

    def _offset(self, token_id: int) -> int:
        before = len(self._text.text)
        self._text.push(token_id)
        return before


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, _LEAST)
