"""A safetensors body, read as it comes: each tensor straight into the memory that stages it.

Rules:

* The header is bounded and judged before anything is allocated for what it names, and the
  live model judges it next; memory is only ever taken for tensors that the model has.
* Tensors are read once, in the order of their bytes. What the plan skips goes by.
* The body ends where its header says, neither sooner nor later; where the plan skips its last
  tensors, nobody waits for those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import anyio.to_thread
import torch

from hotswap.errors import UpdateRejected
from hotswap.push.incoming import Incoming
from hotswap.types import Payload, TensorSpec
from hotswap.uninterrupted import own_threads
from hotswap.weights.safetensors_header import LENGTH_BYTES, Extent, parse_header

__all__ = ["MAX_HEADER_BYTES", "StreamedPush"]

MAX_HEADER_BYTES = 16 * 2**20
"""Room for the names of about a hundred thousand tensors."""

_BODY = "the body"


class StreamedPush:
    """Satisfies ``Pushed``, once: what went by does not come again."""

    in_order = True

    def __init__(self, incoming: Incoming, extents: tuple[Extent, ...], *, start: int) -> None:
        """Use :meth:`begin`. ``start`` is the byte of the body that comes next."""
        self._incoming = incoming
        self._extents = extents
        self._at = start

    def __repr__(self) -> str:
        return f"<StreamedPush {len(self._extents)} tensors at byte {self._at}>"

    def __len__(self) -> int:
        return len(self._extents)

    @classmethod
    async def begin(cls, incoming: Incoming, *, length: int | None) -> StreamedPush:
        """Read the header. ``length`` is that of the body, where its sender has told it.

        Raises: UpdateRejected.
        """
        start = await incoming.first(LENGTH_BYTES)
        size = int.from_bytes(start, "little")
        room = None if length is None else length - LENGTH_BYTES - size
        if len(start) < LENGTH_BYTES or size > MAX_HEADER_BYTES or (room is not None and room < 0):
            raise UpdateRejected(
                f"{_BODY}: says that its header has {size} bytes, wanted at most "
                f"{MAX_HEADER_BYTES} and no more than the body has; it is no safetensors file, or "
                "its end is missing"
            )
        text = await incoming.first(size)
        if len(text) < size:
            raise UpdateRejected(f"{_BODY}: ends within its header; send all of it")
        extents = await anyio.to_thread.run_sync(
            lambda: parse_header(text, source=_BODY, room=room), limiter=own_threads()
        )
        return cls(incoming, extents, start=LENGTH_BYTES + size)

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Payload]]:
        """See ``Pushed``."""
        last = self._extents[-1]
        yield {
            extent.spec.name: _Coming(self, extent, is_last=extent is last)
            for extent in self._extents
        }

    def read(self, extent: Extent, out: memoryview, *, is_last: bool) -> None:
        """Fill ``out`` with a tensor that has not gone by. Raises: OSError."""
        if extent.offset < self._at:
            raise OSError(f"tensor {extent.spec.name!r} of the body has gone by already")
        self._incoming.skip(extent.offset - self._at)
        self._incoming.read_into(out)
        self._at = extent.offset + extent.spec.size_bytes
        if is_last and self._incoming.rest:
            self._check_end()

    def _check_end(self) -> None:
        try:
            self._incoming.read_into(memoryview(bytearray(1)))
        except OSError:
            # There is no byte more, as it should be; or the sender has gone, having sent all.
            return
        raise OSError("the body goes on after its last tensor; wanted its end there")


class _Coming:
    """A tensor of a body; a ``Readable``."""

    __slots__ = ("_extent", "_is_last", "_push")

    in_order = True

    def __init__(self, push: StreamedPush, extent: Extent, *, is_last: bool) -> None:
        self._push = push
        self._extent = extent
        self._is_last = is_last

    def __repr__(self) -> str:
        return f"<_Coming {self._extent.spec}>"

    @property
    def spec(self) -> TensorSpec:
        """Name, dtype and shape."""
        return self._extent.spec

    def read_into(self, out: torch.Tensor) -> None:
        """Fill ``out``; once, and in the order of the body. Raises: OSError."""
        flat = out.detach().as_strided((out.numel(),), (1,)).view(torch.uint8)
        self._push.read(self._extent, flat.numpy().data, is_last=self._is_last)
