"""The buckets of a source that is memory already, with what lies scattered in it gathered.

Rule: the commit of a staged update copies memory. What has first to be looked for, one element
here and one there, is brought together before: requests would have to wait for it.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import ExitStack

from hotswap.closing import Closing
from hotswap.fetch import Buckets, rejecting
from hotswap.types import Bucket, Payload
from hotswap.weights.pieces import Scattered, spec_of
from hotswap.weights.staging import Staging

__all__ = ["Gathering"]


class Gathering(Closing):
    """``buckets``, whose ``Scattered`` payloads of the planned ``names`` are in host memory, in
    the dtype in which they came, until ``close``. Event-loop thread."""

    def __init__(self, buckets: Buckets, names: Container[str]) -> None:
        self._buckets = buckets
        self._names = names
        self._held = ExitStack()

    def __repr__(self) -> str:
        return f"<Gathering {self._buckets!r}>"

    async def next(self) -> Bucket | None:
        """As ``Buckets.next``. Raises: UpdateRejected when the memory cannot be had or read."""
        bucket = await self._buckets.next()
        wanted: list[tuple[str, Payload]] = [
            (name, payload)
            for name, payload in bucket or ()
            if name in self._names and isinstance(payload, Scattered)
        ]
        if bucket is None or not wanted:
            return bucket
        with rejecting("gathering strided tensors"):
            return await self._gathered(bucket, wanted)

    async def _gathered(self, bucket: Bucket, wanted: list[tuple[str, Payload]]) -> Bucket:
        specs = {name: spec_of(name, payload) for name, payload in wanted}
        staging = Staging(specs.values())
        self._held.callback(staging.close)
        await staging.fill(wanted, specs)
        return [(name, staging.tensors.get(name, payload)) for name, payload in bucket]

    def close(self) -> None:
        """Give the memory back: after the commit. Idempotent."""
        self._held.close()
