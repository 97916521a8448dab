"""A version in an object store: there is no rename, so its index is what makes it visible.

Rules:

* The index is written last, and only where there is none. Who publishes a number first has it.
* Files of different attempts have different names: none is written over by another attempt, and
  an index names those of its own.
* Files that an index may name are never removed: not once it was sent, whatever came back.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping

from hotswap.errors import UpdateRejected
from hotswap.stream.errors import StreamError
from hotswap.stream.frames import Bytes
from hotswap.stream.layout import INDEX, directory_of
from hotswap.stream.objects import Objects

__all__ = ["ObjectDraft", "attempt_mark"]

_log = logging.getLogger("hotswap.publish")

_OF_AN_ATTEMPT = re.compile(r"model-\d{5,}-of-\d{5,}(-[0-9]{6,})?-[0-9a-f]{8}\.safetensors")


def attempt_mark() -> str:
    """What the names of one attempt's files end with."""
    return f"-{secrets.token_hex(4)}"


class ObjectDraft:
    """The objects of ``version``; readers see them with ``publish``."""

    file_bytes: int = 512 * 2**20
    """How long a file of whole tensors is at most, but for one that is longer: it is sent whole."""

    def __init__(self, source: Objects, version: int) -> None:
        self.directory: Objects = directory_of(source, version)
        self.version: int = version
        self.mark: str = attempt_mark()
        self._index: bytes | None = None

    def __repr__(self) -> str:
        return f"<ObjectDraft {self.directory}{self.mark}>"

    @property
    def where(self) -> str:
        """The version's URL."""
        return str(self.directory)

    def begin(self) -> None:
        """Raises: StreamError when the version is there."""
        if (self.directory / INDEX).exists():
            raise self._taken()

    def write(self, name: str, parts: Iterable[Bytes | bytes]) -> int:
        """Write one file; its length. Raises: StreamError."""
        content = b"".join(part if isinstance(part, bytes) else part.data for part in parts)
        place = self.directory / name
        place.store.put(place.url, content)
        return len(content)

    def publish(self, index: Mapping[str, object]) -> None:
        """Write the index, and readers see the version. Raises: StreamError."""
        place = self.directory / INDEX
        self._index = json.dumps(index).encode()
        try:
            place.store.put(place.url, self._index, new=True)
        except FileExistsError as error:
            # An earlier try of the same request may have arrived, and its answer been lost.
            if place.content() != self._index:
                self._index = None
                raise self._taken() from error
        self._tidy(index)

    def is_visible(self) -> bool:
        """Whether the version is there, and this very one. Raises: StreamError."""
        return self._index is not None and (self.directory / INDEX).content() == self._index

    def discard(self) -> None:
        """Remove what was written and cannot be published any more; what cannot be, stays."""
        if self._index is None:
            self._remove(lambda name: self.mark in name)

    def _tidy(self, index: Mapping[str, object]) -> None:
        """Remove the files of attempts that did not become the version."""
        weight_map = index["weight_map"]
        named = set(weight_map.values()) if isinstance(weight_map, Mapping) else set()
        self._remove(lambda name: name not in named)

    def _remove(self, is_left: Callable[[str], bool]) -> None:
        try:
            for name in self.directory.names():
                if _OF_AN_ATTEMPT.fullmatch(name) and is_left(name):
                    place = self.directory / name
                    place.store.delete(place.url)
        except UpdateRejected as error:
            _log.warning("%s: unused files stay there: %s", self.directory, error)

    def _taken(self) -> StreamError:
        return StreamError(
            f"{self.directory}: is there already, and a version is never written over; see who "
            "else publishes to this source"
        )
