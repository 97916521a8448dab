"""The payload of one request: read once, opened once, let go once.

Rule: the reference that came with a handle is given back exactly once, whatever becomes of
the request: by the block that reads the memory, or by :meth:`Received.release` where no
block has been entered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from hotswap.errors import UpdateRejected
from hotswap.types import Payload
from hotswap.wire.bucket import Sent
from hotswap.wire.refused import PayloadRefused
from hotswap.wire.segments import let_go, opened
from hotswap.wire.sent import SharedStorage

__all__ = ["Received"]


class Received:
    """Satisfies ``Pushed``. Any thread."""

    def __init__(self, sent: Sent | None, *, refusal: UpdateRejected | None = None) -> None:
        """``sent`` None is a payload that ``refusal`` says is none; to open it raises that."""
        self.sent: Sent = sent or Sent(tensors={}, segments=_segments_of(refusal))
        self._refusal = refusal
        self._lock = threading.Lock()
        self._held = True

    def __repr__(self) -> str:
        what = "refused" if self._refusal else f"{len(self.sent.tensors)} tensors"
        return f"<Received {what}{'' if self._held else ', let go'}>"

    @classmethod
    def read(cls, read: Callable[[], Sent]) -> Received:
        """What ``read`` makes of a payload, or the refusal that it raises. Blocks."""
        try:
            return cls(read())
        except UpdateRejected as refusal:
            return cls(None, refusal=refusal)

    @property
    def empty(self) -> bool:
        """Whether it is a bucket without tensors, as trainers send to keep ranks in step."""
        return self._refusal is None and not self.sent.tensors

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Payload]]:
        """See ``Pushed``; once. Raises: PayloadRefused."""
        if self._refusal is not None:
            raise self._refusal
        if not self._taken():
            raise RuntimeError(f"{self!r} is opened a second time")
        with opened(self.sent) as payloads:
            yield payloads

    def release(self) -> None:
        """Give back what no block has read. Idempotent; a few small files, blocking."""
        if self._taken():
            let_go(self.sent.segments)

    def _taken(self) -> bool:
        with self._lock:
            held, self._held = self._held, False
        return held


def _segments_of(refusal: UpdateRejected | None) -> frozenset[SharedStorage]:
    return refusal.segments if isinstance(refusal, PayloadRefused) else frozenset()
