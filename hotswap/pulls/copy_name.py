"""What the copy of a source is called, below a root that has copies of several."""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from hotswap.stream.place import Place, real_name

__all__ = ["copy_name"]

_MAX_NAME = 48  # characters, each up to 4 of the 255 bytes that a name can have


def copy_name(source: Place, *more: str) -> str:
    """A plain name, another one for every other ``source``, and for every other ``more``.

    Raises: OSError.
    """
    real = real_name(source)
    digest = xxhash.xxh3_64_hexdigest(b"\0".join(map(os.fsencode, (real, *more))))[:8]
    name = Path(real).name.lstrip(".")[:_MAX_NAME] or "root"
    return f"{name}-{digest}"
