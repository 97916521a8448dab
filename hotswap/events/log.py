"""The newest events in a ring, and readers that are no more than a place in it.

Rules:

* Memory is bounded: so many events, each of so many characters, however many read.
* A reader costs nobody else anything. One that falls out of the ring is told so.
* An id names the process run as well: after a restart, no old id means anything.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import anyio

from hotswap.errors import QueueFull

__all__ = ["Event", "EventLog", "Gap", "Reader"]

_MAX_CHARACTERS = 512


class Gap(StrEnum):
    """Why events before a reader's first one are missing."""

    TOO_OLD = "too_old"
    OTHER_RUN = "other_run"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. ``time`` is seconds since 1970, ``data`` JSON types."""

    id: str
    number: int
    name: str
    time: float
    data: Mapping[str, object]


@dataclass(slots=True, kw_only=True)
class Reader:
    """A place in the log: ``position`` is the number of the last event that was taken.

    ``gap`` says why there is one between what was asked for and what is to come.
    """

    position: int
    gap: Gap | None = None


class EventLog:
    """The events of one app. Event-loop thread only."""

    def __init__(self, *, capacity: int = 1024, max_readers: int = 64) -> None:
        self.instance: str = uuid.uuid4().hex[:12]
        self._events: deque[Event] = deque(maxlen=capacity)
        self._last = 0
        self._max_readers = max_readers
        self._readers = 0
        self._closed = False
        self._news = anyio.Event()

    def __repr__(self) -> str:
        return f"<EventLog {self.instance} {len(self._events)} events {self._readers} readers>"

    @property
    def last(self) -> int:
        """The number of the newest event; 0 before the first."""
        return self._last

    @property
    def oldest(self) -> int:
        """The number of the oldest event that is kept; one past ``last`` for none."""
        return self._last - len(self._events) + 1

    @property
    def readers(self) -> int:
        """How many read now."""
        return self._readers

    @property
    def closed(self) -> bool:
        """Whether the last event has been published."""
        return self._closed

    def id_of(self, number: int) -> str:
        """The id of the event with that number."""
        return f"{self.instance}-{number}"

    def publish(self, name: str, data: Mapping[str, object]) -> None:
        """Append an event; long texts in ``data`` are cut. After the close: nothing."""
        if self._closed:
            return
        self._last += 1
        self._events.append(
            Event(
                id=self.id_of(self._last),
                number=self._last,
                name=name,
                time=time.time(),
                data={key: _cut(value) for key, value in data.items()},
            )
        )
        self._tell()

    def close(self) -> None:
        """Publish ``shutdown``, the last event, and let the readers end. Idempotent."""
        self.publish("shutdown", {})
        self._closed = True
        self._tell()

    @contextmanager
    def reading(self, after: str | None) -> Iterator[Reader]:
        """A reader of what comes after the event with that id; None: after the newest.

        ``"0"`` is before everything. An id that cannot be resumed from starts at the
        oldest event, and the reader's ``gap`` says why. Raises: QueueFull when too many read.
        """
        if self._readers >= self._max_readers:
            raise QueueFull(
                f"{self._readers} readers of events are connected, wanted fewer than "
                f"{self._max_readers}; close one, or ask with stream=false"
            )
        self._readers += 1
        try:
            yield self.place(after)
        finally:
            self._readers -= 1

    def place(self, after: str | None) -> Reader:
        """Where a reader that asks for events ``after`` that id begins."""
        if after is None:
            return Reader(position=self._last)
        gap = self._gap_after(after)
        if gap is not None or after == "0":
            return Reader(position=self.oldest - 1, gap=gap)
        return Reader(position=int(after.rpartition("-")[2]))

    def _gap_after(self, after: str) -> Gap | None:
        """Why nobody can go on right after that id."""
        instance, _, number = after.rpartition("-")
        if not (number.isascii() and number.isdigit() and len(number) < 16):
            return Gap.UNKNOWN
        if after != "0" and instance != self.instance:
            return Gap.OTHER_RUN
        if int(number) > self._last:
            return Gap.UNKNOWN
        return Gap.TOO_OLD if int(number) < self.oldest - 1 else None

    def missed(self, reader: Reader) -> int:
        """How many events went before ``reader`` took them; it has fallen behind then."""
        return max(0, self.oldest - 1 - reader.position)

    def take(self, reader: Reader, *, limit: int = 64) -> list[Event]:
        """The next events, at most ``limit``; the reader moves past them."""
        begin = max(0, reader.position + 1 - self.oldest)
        end = min(len(self._events), begin + limit)
        taken = [self._events[index] for index in range(begin, end)]
        if taken:
            reader.position = taken[-1].number
        return taken

    async def wait(self, reader: Reader) -> None:
        """Return once there is an event for ``reader``, or the log is closed."""
        while reader.position >= self._last and not self._closed:
            await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()


def _cut(value: object) -> object:
    if isinstance(value, str) and len(value) > _MAX_CHARACTERS:
        return value[:_MAX_CHARACTERS] + "…"
    return value
