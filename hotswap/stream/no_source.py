"""What can be no source of published versions, told from one that is empty, or not there yet.

Rule: whoever waits for a version of it would wait for ever, so that no error about it may be
``retryable``.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from hotswap.errors import UpdateRejected
from hotswap.stream.errors import SourceUnusable
from hotswap.stream.layout import published_versions, version_named
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place
from hotswap.stream.state import Reserved

__all__ = ["no_source"]

_OF_CHECKPOINTS = (
    ".safetensors",
    ".safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_WANTED = "wanted a directory of published versions"


def no_source(place: Place) -> SourceUnusable | None:
    """Why ``place`` is no source: a file, a checkpoint, a local checkpoint, one version.

    None for what may be one or become one, be it empty or not there, and for what cannot be
    looked at. Blocks.
    """
    try:
        why = _why_not(place)
    except (UpdateRejected, OSError, ValueError):
        return None
    return None if why is None else SourceUnusable(f"{place} {why}")


def _why_not(place: Place) -> str | None:
    if isinstance(place, Path) and not place.is_dir():
        return f"is a file, {_WANTED}" if place.exists() else None
    if published_versions(place):
        return None
    if isinstance(place, Path) and Reserved(place).home.is_dir():
        return (
            f"is a local checkpoint, which versions are pulled into, {_WANTED}: hotswap inspect "
            "names the source that it was pulled from"
        )
    number = version_named(place.name)
    if number is not None:
        return f"is version {number} itself, {_WANTED}: name the one that it is in"
    if any(name.endswith(_OF_CHECKPOINTS) for name in _names(place)):
        return (
            f"is a checkpoint and has no published version, {_WANTED}: hotswap check says whether "
            "it is loadable, hotswap publish makes a version of it"
        )
    return None


def _names(place: Place) -> Collection[str]:
    """What lies in ``place`` itself."""
    if isinstance(place, Objects):
        return [name for name in place.names() if "/" not in name]
    return os.listdir(place)
