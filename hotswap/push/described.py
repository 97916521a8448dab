"""Tensors in shared memory of this machine, described in JSON.

Rules:

* The sender has written a nonce into the segment, and says it: so both see the same memory,
  and who can only guess a name reads nothing. It is read through the descriptor that the
  tensors are read through.
* Everything is checked in Python's integers before the segment is opened, and its real size
  before anything is read; it is never mapped (:mod:`hotswap.wire.segments`).
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Annotated, TypeAlias

import msgspec
import torch
from msgspec import Meta

from hotswap.errors import UpdateRejected
from hotswap.types import Payload, Readable
from hotswap.weights.safetensors_header import DTYPES
from hotswap.wire.bucket import Sent
from hotswap.wire.owners import Owner
from hotswap.wire.references import give_back
from hotswap.wire.refused import PayloadRefused
from hotswap.wire.segments import opened
from hotswap.wire.sent import NoStorage, SentTensor, SharedStorage, row_major

__all__ = [
    "MAX_DESCRIPTION_BYTES",
    "NONCE_BYTES",
    "DescribedTensor",
    "Description",
    "Natural",
    "Nonce",
    "SegmentNotSeen",
    "SharedPush",
]

MAX_DESCRIPTION_BYTES = 16 * 2**20
"""Room for the names of about a hundred thousand tensors."""

NONCE_BYTES = 32
"""At the start of a segment, in front of its tensors."""

# A tensor of this name is refused, as one that comes twice.
_NONCE = "\0nonce"
_SEGMENT = re.compile(r"/?(torch_[0-9]{1,20}_[0-9]{1,20}(?:_[0-9]{1,20})?)")

Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Of bytes or elements."""

Nonce: TypeAlias = Annotated[str, Meta(pattern=f"^[0-9a-f]{{{2 * NONCE_BYTES}}}$")]
"""32 bytes, hexadecimal."""


class SegmentNotSeen(PayloadRefused):
    """The segment is not there, or not the one that the sender has written: another machine,
    or another container. The tensors can be sent as a body."""


class DescribedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """``shape`` elements of ``dtype`` (as safetensors spells it) in row-major order, from byte
    ``offset`` of the segment on."""

    name: str
    dtype: str
    shape: Annotated[list[Natural], Meta(max_length=64)]
    offset: Natural


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The segment ``segment`` of ``size_bytes`` bytes, the first 32 of which are ``nonce``
    (hexadecimal), and the ``tensors`` in it."""

    segment: str
    size_bytes: Natural
    nonce: Nonce
    tensors: Annotated[Sequence[DescribedTensor], Meta(min_length=1)]

    def push(self) -> SharedPush:
        """What it describes. Raises: PayloadRefused."""
        name = _SEGMENT.fullmatch(self.segment)
        if name is None:
            raise PayloadRefused(
                f"the segment is {self.segment!r:.80}, wanted a name that torch gives, as "
                "torch_1234_5678_0"
            )
        storage = SharedStorage(name=name[1], size_bytes=self.size_bytes)
        tensors = {_NONCE: _plain(torch.uint8, (NONCE_BYTES,), 0, storage)}
        for one in self.tensors:
            if one.name in tensors:
                raise PayloadRefused(f"tensor {one.name!r:.80} appears twice, wanted once")
            tensors[one.name] = _tensor(one, storage)
        # No reference travels with a description.
        sent = Sent(tensors=tensors, segments=frozenset({storage}), references={})
        return SharedPush(sent, bytes.fromhex(self.nonce), segment=storage.name)


class SharedPush:
    """Satisfies ``Pushed``: can be opened again and again."""

    def __init__(self, sent: Sent, nonce: bytes, *, segment: str) -> None:
        """Use :meth:`Description.push`."""
        self._sent = sent
        self._nonce = nonce
        self._segment = segment
        self._owner = Owner.of(segment)

    def __repr__(self) -> str:
        return f"<SharedPush {len(self)} tensors>"

    def __len__(self) -> int:
        return len(self._sent.tensors) - 1

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Payload]]:
        """See ``Pushed``. Raises: SegmentNotSeen."""
        with ExitStack() as held:
            try:
                payloads = held.enter_context(opened(self._sent))
            except UpdateRejected as error:
                raise SegmentNotSeen(f"{error}; or send the tensors as a body") from error
            self._check(payloads.pop(_NONCE))
            # Only now: who has guessed a name has nothing removed.
            held.callback(give_back, {self._segment: 0}, owners={self._segment: self._owner})
            yield payloads

    def release(self) -> None:
        """Remove the segment of a sender that has ended, where nothing was opened: its push was
        refused. Idempotent; blocking."""
        if not self._owner.lives:
            with suppress(UpdateRejected), self.opened():
                pass

    def _check(self, payload: Payload) -> None:
        seen = torch.empty(NONCE_BYTES, dtype=torch.uint8)
        assert isinstance(payload, Readable), "a segment is read, and not mapped"
        payload.read_into(seen)
        if not hmac.compare_digest(bytes(seen.tolist()), self._nonce):
            raise SegmentNotSeen(
                "the segment does not begin with the nonce of the request: it is another one, of "
                "another machine or container; send the tensors as a body"
            )


def _tensor(one: DescribedTensor, storage: SharedStorage) -> SentTensor:
    dtype = DTYPES.get(one.dtype)
    if dtype is None:
        raise PayloadRefused(
            f"tensor {one.name!r:.80}: dtype {one.dtype!r:.40} is not supported; wanted one of "
            f"{', '.join(DTYPES)}"
        )
    try:
        return _plain(dtype, tuple(one.shape), one.offset, storage)
    except PayloadRefused as error:
        raise PayloadRefused(f"tensor {one.name!r:.80}: {error}") from error


def _plain(
    dtype: torch.dtype, shape: tuple[int, ...], offset: int, storage: SharedStorage
) -> SentTensor:
    empty = 0 in shape
    return SentTensor(
        dtype=dtype,
        shape=shape,
        strides=row_major(shape),
        offset_bytes=0 if empty else offset,
        storage=NoStorage if empty else storage,
    )
