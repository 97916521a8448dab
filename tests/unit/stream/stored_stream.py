"""A stream in a store that fails when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotswap.stream import (
    PullMode,
    StreamError,
    pull,
)
from hotswap.stream.layout import directory_of
from hotswap.stream.objects import Objects
from tests.unit.stream.faulty_store import Fault, FaultyStore, objects, uploaded
from tests.unit.stream.streams import Stream, contents_of

__all__ = ["Stored", "failing", "once", "put"]


class Stored:
    """A stream, and a copy of it in a store."""

    def __init__(self, root: Path, *encodings: str, **shape: int) -> None:
        self.stream = Stream(root, *encodings, **shape)
        self.fs = FaultyStore()
        self.pauses = list[float]()
        self.place = objects(self.fs, self.pauses)
        uploaded(self.stream.source, self.place)
        self.fs.requests.clear()

    def pull(self, version: int) -> PullMode:
        """Pull, and compare every byte."""
        stream = self.stream
        report = pull(stream.local, self.place, version, base_dir=stream.base, threads=2)
        assert contents_of(stream.local) == stream.at(version)
        return report.mode

    def refused(self, version: int) -> StreamError:
        """What a pull of ``version`` is refused with."""
        with pytest.raises(StreamError) as caught:
            self.pull(version)
        return caught.value

    def file(self, version: int, name: str) -> Objects:
        """One object of a version."""
        return directory_of(self.place, version) / name


def put(place: Objects, content: bytes) -> None:
    place.store.put(place.url, content)


def once(request: str, part: str, work: Callable[[], None]) -> Fault:
    """Do ``work`` at the first ``request`` for a path with ``part`` in it."""
    left = [work]

    def fault(seen: str, path: str) -> None:
        if seen == request and part in path and left:
            left.pop()()

    return fault


def failing(*errors: BaseException) -> Fault:
    """Raise ``errors`` in turn at the first requests."""
    left: Iterator[BaseException] = iter(errors)

    def fault(request: str, path: str) -> None:
        for error in left:
            raise error

    return fault
