"""Where versions are published: a directory, or a prefix of an object store.

Rule: a URL is text. A path has lost one of its slashes, and is only ever a directory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from hotswap.object_url import SCHEMES, is_url
from hotswap.stream.errors import SourceUnusable
from hotswap.stream.objects import ObjectFolder, Objects
from hotswap.weights.folder import Folder
from hotswap.weights.readable import AnyFolder
from hotswap.weights.roots import Allowed

__all__ = ["Place", "absolute_place", "local_directory", "opened", "place_of", "real_name"]

_KNOWN = frozenset(SCHEMES)

Place: TypeAlias = Path | Objects
"""Both give what is in them with ``/``, and have a ``name``."""


def place_of(source: str | os.PathLike[str] | Objects) -> Place:
    """What ``source`` means: ``scheme://...`` as text is a store, everything else a directory.

    Raises: SourceUnusable for a URL that cannot be one, or that a path was made of.
    """
    if isinstance(source, Objects):
        return source
    text = os.fspath(source)
    if isinstance(source, str) and is_url(text):
        return Objects.at(text)
    if text.startswith(tuple(f"{scheme}:/" for scheme in SCHEMES)):
        raise SourceUnusable(
            f"{text.partition(':')[0]}:/... is a URL that was made a path and lost a slash; give "
            "it as a str"
        )
    return Path(text)


def local_directory(path: str | os.PathLike[str], what: str) -> Path:
    """``path`` of a directory of this machine, which is ``what``.

    Raises: SourceUnusable for a URL, also one that was made a path on the way; nothing of it is
    said again but what store it is of.
    """
    text = os.fspath(path)
    lost = [part.removesuffix(":") for part in Path(text).parts if part.endswith(":")]
    scheme = text.partition("://")[0] if is_url(text) else next(iter(_KNOWN & set(lost)), None)
    if scheme is not None:
        raise SourceUnusable(
            f"{what} is {scheme}://..., a URL, wanted a directory of this machine; only a source "
            "of versions may be in an object store"
        )
    return Path(text)


def absolute_place(text: str) -> Place:
    """``place_of`` for a command line: messages and states name a directory from the root on."""
    return place_of(text if is_url(text) else os.path.abspath(text))


def opened(place: Place, *, allowed: Allowed | None = None) -> AnyFolder:
    """The files directly in ``place``. ``allowed`` judges real paths; for a URL nothing does.

    Raises: UpdateRejected.
    """
    if isinstance(place, Objects):
        return ObjectFolder(place)
    return Folder.open(place, allowed=allowed)


def real_name(place: Place) -> str:
    """``place`` as states name it: the same for every way to write it. Raises: OSError."""
    return str(place) if isinstance(place, Objects) else os.path.realpath(place)
