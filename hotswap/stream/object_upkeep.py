"""What a publisher keeps in an object store besides versions, and what it removes there."""

from __future__ import annotations

from collections.abc import Collection

from hotswap.stream.layout import INDEX, directory_of, version_named
from hotswap.stream.object_draft import attempt_mark
from hotswap.stream.objects import Objects

__all__ = ["ObjectAggregate", "remove_versions"]


class ObjectAggregate:
    """``aggregate/`` in an object store.

    Rule: each one has files of its own names; an index replaces the one before it at once, and
    only then the files of that one go.
    """

    def __init__(self, directory: Objects) -> None:
        self.directory: Objects = directory
        self.mark: str = attempt_mark()

    def __repr__(self) -> str:
        return f"<ObjectAggregate {self.directory}{self.mark}>"

    def begin(self) -> None:
        """Nothing has to be made ready."""

    def write(self, name: str, content: bytes) -> None:
        """Write one file. Raises: StreamError."""
        place = self.directory / name
        place.store.put(place.url, content)

    def finish(self, index: bytes, names: Collection[str]) -> None:
        """Let readers see ``index``, which has files ``names``. Raises: StreamError."""
        self.write(INDEX, index)
        for name in self.directory.names() - {INDEX, *names}:
            place = self.directory / name
            place.store.delete(place.url)


def remove_versions(source: Objects, versions: Collection[int], *, before: int) -> None:
    """Remove ``versions``, and what was left of others ``before`` that number.

    An index goes first: what has none is no version. Raises: StreamError.
    """
    for version in versions:
        place = directory_of(source, version) / INDEX
        place.store.delete(place.url)
    for path in sorted(source.names()):
        directory, _, name = path.partition("/")
        number = version_named(directory)
        if number in versions or (number is not None and number < before and name):
            place = source / directory
            for part in name.split("/"):
                place = place / part
            place.store.delete(place.url)
