"""Text to token ids and back, through the ``tokenizers`` package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

__all__ = ["TextCodec", "load_codec"]


class TextCodec:
    """A ``tokenizer.json``. Any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids, with the special tokens that the tokenizer adds by itself, or without.

        Special tokens that the text spells out are found either way.
        """
        # The batch call gives up the GIL, and the fast one keeps no offsets: another
        # thread is held up for milliseconds, not for as long as a long text takes.
        (encoding,) = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        return list(encoding.ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text; ids without a token are left out, and special tokens unless told otherwise."""
        ids = list(token_ids)
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))


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
