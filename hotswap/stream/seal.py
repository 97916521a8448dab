"""A line at the end of a small JSON file that says what the rest of it has to be.

A bit that turns in one may leave it well-formed, and let it speak of another version. What was
written without a seal, or written anew by somebody else, is taken as it is.
"""

from __future__ import annotations

import xxhash

__all__ = ["is_as_sealed", "sealed"]

_KEY = b',\n "seal": "'
_END = b'"\n}'


def sealed(text: bytes) -> bytes:
    """``text``, an object with something in it, with its xxh3-128 as one more value."""
    body = text.rstrip().removesuffix(b"}").rstrip()
    return body + _KEY + _digest(body) + _END


def is_as_sealed(text: bytes) -> bool:
    """Whether nothing of ``text`` was changed since, as far as a seal can tell."""
    body, key, seal = text.rpartition(_KEY)
    return not key or seal == _digest(body) + _END


def _digest(body: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(body).encode()
