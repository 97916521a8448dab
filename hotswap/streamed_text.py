"""Text of a growing token sequence, as far as it can be shown without taking it back.

Decoding everything again at each token would cost the square of the length, and
a token may end inside a multi-byte character. So only a short window is decoded:
the tokens since the last shown text, and those before them for context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["StreamedText", "cut_at_stop", "showable"]

_INCOMPLETE = "\ufffd"
# A character has at most four bytes, a token at least one. A longer run without
# a whole character is not going to become one.
_MAX_HELD_TOKENS = 16


class StreamedText:
    """Feed token ids; ``text`` is the part whose characters are complete."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._held: list[int] = []
        self._context_text = ""
        self.text = ""

    def __repr__(self) -> str:
        return f"<StreamedText {len(self.text)} characters, {len(self._held)} tokens held>"

    def push(self, token_id: int) -> str:
        """Take one more token; what ``text`` grew by, nothing while a character is incomplete."""
        self._held.append(token_id)
        window = self._decode([*self._context, *self._held])
        if window.endswith(_INCOMPLETE) and len(self._held) < _MAX_HELD_TOKENS:
            return ""
        shown = window[len(self._context_text) :]
        self.text += shown
        self._context, self._held = self._held, []
        self._context_text = self._decode(self._context)
        return shown


def showable(text: str, stops: Sequence[str]) -> str:
    """``text`` up to the first stop string, and without a tail that may become one."""
    for stop in stops:
        text = cut_at_stop(text, stop)
    hidden = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), hidden, -1):
            if text.endswith(stop[:length]):
                hidden = length
                break
    return text[: len(text) - hidden]


def cut_at_stop(text: str, stop: str) -> str:
    """``text`` up to the first ``stop`` in it, all of it when there is none."""
    head, _, _ = text.partition(stop)
    return head
