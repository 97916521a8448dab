"""A small byte-level tokenizer: any text, no download, at most a few hundred ids.

Ids 0 to 255 are the bytes, 256 is the end of text, 257 the padding, and what is
left of the vocabulary are merges of pairs that are frequent in English.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

__all__ = ["EOS_ID", "EOS_TOKEN", "PAD_ID", "PAD_TOKEN", "build_tokenizer", "write_tokenizer"]

EOS_ID = 256
EOS_TOKEN = "<|endoftext|>"
PAD_ID = 257
PAD_TOKEN = "<|pad|>"

_FIRST_MERGE = 258
_PAIRS = (
    "thheineranreonatenndtiesorteofedisitalarsttontngsehaasouiole"
    "vecomedehiriroicneearacelichllbemasiomur"
)
_SPACED = "taswocbpdfmh"


def _byte_symbols() -> list[str]:
    """The 256 printable characters that stand for bytes, in byte order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def build_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer whose ids are all below ``vocab_size``.

    Raises: ValueError when the bytes and the two special tokens do not fit.
    """
    if vocab_size < _FIRST_MERGE:
        raise ValueError(
            f"vocab_size {vocab_size} is too small for a byte-level tokenizer; "
            f"pass at least {_FIRST_MERGE}, or tokenizer=False"
        )
    symbols = _byte_symbols()
    space = symbols[ord(" ")]
    merges = list(zip(_PAIRS[::2], _PAIRS[1::2], strict=True))
    merges += [(space, letter) for letter in _SPACED]
    merges = merges[: vocab_size - _FIRST_MERGE]
    vocab = {symbol: index for index, symbol in enumerate(symbols)}
    vocab |= {"".join(pair): _FIRST_MERGE + index for index, pair in enumerate(merges)}
    vocab |= {EOS_TOKEN: EOS_ID, PAD_TOKEN: PAD_ID}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(EOS_TOKEN, special=True), AddedToken(PAD_TOKEN, special=True)]
    tokenizer.add_special_tokens(specials)
    return tokenizer


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``directory``."""
    build_tokenizer(vocab_size).save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS_TOKEN,
        "pad_token": PAD_TOKEN,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
