"""The payload of one request: read once, opened once, let go once.

Rule: the references that came with handles are given back exactly once, whatever becomes of
the request: by the block that reads the memory, or by :meth:`Received.release` where no
block has been entered; also those of a payload that cannot be read at all.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from hotswap.errors import UpdateRejected
from hotswap.types import Payload, Placement
from hotswap.wire.bucket import Sent, decode
from hotswap.wire.named import names_in, names_in_body
from hotswap.wire.owners import Owner
from hotswap.wire.ranks import chosen, payload_bytes
from hotswap.wire.references import give_back, give_back_on_device
from hotswap.wire.segments import opened

__all__ = ["Received", "take_back"]


class Received:
    """Satisfies ``Pushed``. Any thread."""

    def __init__(
        self,
        sent: Sent | None,
        *,
        refusal: UpdateRejected | None = None,
        references: Mapping[str, int] | None = None,
        mark: str | None = None,
    ) -> None:
        """``sent`` None is a payload that ``refusal`` says is none, which has come with
        ``references`` all the same; to open it raises that. ``mark`` is the same for the same
        payload."""
        self.mark = mark
        self.sent: Sent = sent or Sent(
            tensors={}, segments=frozenset(), references=references or {}
        )
        self._owners = {name: Owner.of(name) for name in self.sent.references}
        self._refusal = refusal
        self._lock = threading.Lock()
        self._held = True

    def __repr__(self) -> str:
        what = "refused" if self._refusal else f"{len(self.sent.tensors)} tensors"
        return f"<Received {what}{'' if self._held else ', let go'}>"

    @classmethod
    def read(
        cls,
        payloads: Sequence[str] | Mapping[str, str],
        *,
        load_format: str | None = None,
        placement: Placement | None = None,
        device_uuid: str | None = None,
    ) -> Received:
        """What the payload of this rank says, or that it was refused. Blocks."""
        rank, world_size = (placement or Placement()).rank, (placement or Placement()).world_size
        # What none can be told to be for is the first one's to let go.
        listed = payloads.values() if isinstance(payloads, Mapping) else payloads
        mine = list(listed) if rank == 0 else []
        try:
            text = chosen(payloads, rank=rank, world_size=world_size, device_uuid=device_uuid)
            mine = [text]
            payload = payload_bytes(text)
            sent = decode(payload, load_format=load_format, rank=rank, world_size=world_size)
            return cls(sent, mark=hashlib.blake2b(payload).hexdigest())
        except UpdateRejected as refusal:
            return cls(None, refusal=refusal, references=names_in(mine))

    @classmethod
    def refused(cls, body: bytes | bytearray) -> Received:
        """What a request has named, ``body`` being what came of it, that was refused before its
        payloads were known. Blocks."""
        refusal = UpdateRejected("the request was refused; nothing was read")
        return cls(None, refusal=refusal, references=names_in_body(body))

    @classmethod
    def unread(cls, texts: Iterable[str]) -> Received:
        """What is named by ``texts`` that came with a request and that nobody reads. Blocks."""
        refusal = UpdateRejected("nobody reads this field; send its tensors as a payload")
        return cls(None, refusal=refusal, references=names_in(texts))

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
        with opened(self.sent, owners=self._owners) as payloads:
            yield payloads

    def release(self) -> None:
        """Give back what no block has read. Idempotent; a few small files, blocking."""
        if self._taken():
            give_back(self.sent.references, owners=self._owners)
            give_back_on_device(tensor.storage for tensor in self.sent.tensors.values())

    def _taken(self) -> bool:
        with self._lock:
            held, self._held = self._held, False
        return held


def take_back(payloads: Iterable[str], *, load_format: str | None = None) -> None:
    """For a sender: give up the references of payloads that no server has read, of a request that
    was refused for its key or its length, or had no reply. Blocks; raises nothing.

    Call it before the tensors are let go. What a server has given back already stays as it is,
    so it may be called after any reply, once nothing else that names the same tensors is on its
    way. ``load_format`` is what was sent; it is needed for tensors of a device.
    """
    for payload in payloads:
        Received.read([payload], load_format=load_format).release()
