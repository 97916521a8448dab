"""The checksums that publishers write beside each tensor: of its new bytes, in hex."""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

import xxhash

from hotswap.stream.errors import UnknownEncoding

__all__ = ["CHECKSUMS", "OWN_CHECKSUM", "Hasher", "checksum", "is_checksum", "new_hasher"]

OWN_CHECKSUM = "xxh3-128"
"""What hotswap records of a local checkpoint, whatever its stream uses."""


class Hasher(Protocol):
    """Takes a tensor piece by piece."""

    def update(self, data: memoryview, /) -> object:
        """Take the next bytes."""
        ...

    def hexdigest(self) -> str:
        """The checksum of all bytes so far, in lower-case hex digits."""
        ...


class _Adler32:
    def __init__(self) -> None:
        self._value = 1

    def update(self, data: memoryview, /) -> None:
        self._value = zlib.adler32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def _blake3() -> Hasher:
    try:
        module = importlib.import_module("blake3")
    except ImportError as error:
        raise UnknownEncoding(
            "the stream's checksums are blake3, which is not installed here: "
            "pip install 'hotswap[blake3]', or publish with xxh3-128"
        ) from error
    hasher: Hasher = module.blake3()
    return hasher


_HASHERS: Mapping[str, tuple[Callable[[], Hasher], int]] = {
    "xxh3-128": (xxhash.xxh3_128, 32),
    "blake3": (_blake3, 64),
    "adler32": (_Adler32, 8),
}

CHECKSUMS = tuple(_HASHERS)
"""The names that an index may give as ``checksum_format``."""


def new_hasher(name: str) -> Hasher:
    """A hasher of the kind ``name``. Raises: UnknownEncoding, also for one not installed."""
    if name not in _HASHERS:
        raise UnknownEncoding(
            f"checksum_format {name!r:.80}, wanted one of {', '.join(CHECKSUMS)}; "
            "publish with one of them"
        )
    return _HASHERS[name][0]()


def checksum(name: str, data: memoryview) -> str:
    """The checksum of ``data`` at once. Raises: UnknownEncoding."""
    hasher = new_hasher(name)
    hasher.update(data)
    return hasher.hexdigest()


def is_checksum(name: str, text: str) -> bool:
    """Whether ``text`` has the form of a checksum of the kind ``name``."""
    return re.fullmatch(f"[0-9a-f]{{{_HASHERS[name][1]}}}", text) is not None
