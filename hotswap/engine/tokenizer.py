"""Text to token ids and back, through the ``tokenizers`` package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

__all__ = ["TextCodec", "TextStream", "load_codec"]

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
# A character has four bytes at most: what is not whole after so many tokens never will be.
_PATIENCE = 8


class TextCodec:
    """A ``tokenizer.json``. Any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Token ids, with the special tokens that the tokenizer adds by itself."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text; special tokens and ids without a token are left out."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))


class TextStream:
    """Decodes token by token, and gives out only whole characters."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._ids: list[int] = []
        self._given = 0

    def push(self, token_id: int) -> str:
        """The text that became certain with ``token_id``; often empty, never half a character."""
        self._ids.append(token_id)
        # The ids already given out stay as context: decoders treat a first token apart.
        before = self._codec.decode(self._ids[: self._given])
        now = self._codec.decode(self._ids)
        if now.endswith(_UNFINISHED) and len(self._ids) - self._given < _PATIENCE:
            return ""
        self._ids = self._ids[self._given :]
        self._given = len(self._ids)
        return now[len(before) :]


def load_codec(directory: Path) -> TextCodec | None:
    """The tokenizer of a Hugging Face directory, None where it has no ``tokenizer.json``.

    Raises: ValueError for a file that is no tokenizer.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        return TextCodec(Tokenizer.from_file(str(path)))
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"{path} is not a tokenizer of the tokenizers package: {error}") from error
