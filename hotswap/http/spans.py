"""Which weights made which output tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hotswap.types import WeightStamp

__all__ = ["Spans", "VersionSpan", "spans_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Output tokens ``[start, end)`` came from the weights of one commit, under one label."""

    version: str | None
    weight_epoch: int
    start: int
    end: int


class Spans:
    """Collects the stamp of each output token, in order."""

    def __init__(self) -> None:
        self._closed: list[VersionSpan] = []
        self._stamp: WeightStamp | None = None
        self._start = 0
        self._end = 0

    def __repr__(self) -> str:
        return f"<Spans {len(self.all())} over {self._end} tokens>"

    def add(self, stamp: WeightStamp) -> None:
        """Note one more token. Neighbours of one epoch and version share a span."""
        if self._stamp is not None and _label(stamp) != _label(self._stamp):
            self._closed.append(self._open_span(self._stamp))
            self._start = self._end
        self._stamp = stamp
        self._end += 1

    def all(self) -> list[VersionSpan]:
        """The spans so far: they cover ``[0, tokens)`` without a gap or an overlap."""
        if self._stamp is None:
            return []
        return [*self._closed, self._open_span(self._stamp)]

    def _open_span(self, stamp: WeightStamp) -> VersionSpan:
        return VersionSpan(
            version=stamp.version, weight_epoch=stamp.epoch, start=self._start, end=self._end
        )


def _label(stamp: WeightStamp) -> tuple[int, str | None]:
    # A version can change without a commit: the weights were given another name.
    return stamp.epoch, stamp.version


def spans_of(stamps: Iterable[WeightStamp]) -> list[VersionSpan]:
    """The spans of a whole sequence of token stamps."""
    spans = Spans()
    for stamp in stamps:
        spans.add(stamp)
    return spans.all()
