"""Text of a growing token sequence, as far as it can be shown without taking it back.

Decoding everything again at each token would cost the square of the length, and
a token may end inside a multi-byte character. So only a short window is decoded:
the tokens since the last shown text, and those before them for context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["StopFilter", "StreamedText", "cut_at_stop"]

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
        self.text: str = ""

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


class StopFilter:
    """Feed text; ``length`` is how much of it can be shown: what may become a stop
    string waits, and nothing from the first complete one on is ever shown.

    One step a character and stop string, however long either is.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._partials = [_Partial(stop) for stop in stops]
        self._position = 0
        self._is_over = False
        self.length: int = 0

    def __repr__(self) -> str:
        return f"<StopFilter {self.length} of {self._position} characters>"

    def push(self, text: str, *, stops: bool = True) -> None:
        """Take what comes next. Without ``stops`` a stop string that ends in it is passed over."""
        if not self._partials:
            self.length += len(text)
            return
        for character in text:
            if self._is_over:
                return
            self._position += 1
            held = max(partial.push(character) for partial in self._partials)
            whole = [partial for partial in self._partials if partial.is_whole]
            self._is_over = stops and bool(whole)
            if whole and not stops:
                for partial in whole:
                    partial.pass_over()
                held = max(partial.matched for partial in self._partials)
            self.length = self._position - held


class _Partial:
    """How much of one stop string the text ends with (Knuth, Morris and Pratt)."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._shorter = _shorter_prefixes(stop)
        self.matched = 0

    @property
    def is_whole(self) -> bool:
        return self.matched == len(self._stop)

    def push(self, character: str) -> int:
        """Take a character; not to be called while ``is_whole``."""
        self.matched = _extended(self._stop, self._shorter, self.matched, character)
        return self.matched

    def pass_over(self) -> None:
        """Go on after a whole one, with what may become the next."""
        self.matched = self._shorter[-1]


def _shorter_prefixes(stop: str) -> list[int]:
    """For each prefix of ``stop``: the longest shorter one that it ends with."""
    shorter = [0]
    for character in stop[1:]:
        shorter.append(_extended(stop, shorter, shorter[-1], character))
    return shorter


def _extended(stop: str, shorter: Sequence[int], matched: int, character: str) -> int:
    while matched and stop[matched] != character:
        matched = shorter[matched - 1]
    return matched + (stop[matched] == character)


def cut_at_stop(text: str, stop: str, *, passed: int = 0) -> str:
    """``text`` up to the first ``stop`` in it, all of it when there is none.

    One that ends within the first ``passed`` characters does not count.
    """
    at = text.find(stop, max(0, passed - len(stop) + 1))
    return text if at < 0 else text[:at]
