"""A push as an update: what a payload describes, through the one transaction there is.

Rule: memory of the sender is open only while the stage is, and is let go however the update
ends, before anybody is told how it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager

import anyio.to_thread

from hotswap.errors import UpdateRejected
from hotswap.types import (
    Bucket,
    LoadMode,
    Manifest,
    PauseMode,
    Payload,
    Placement,
    Scope,
    TensorSpec,
    Update,
)
from hotswap.uninterrupted import own_threads, uninterrupted
from hotswap.wire.bucket import Sent
from hotswap.wire.segments import opened

__all__ = ["PUSHED", "PushStrategy", "push_update"]

PUSHED = "push"
"""The name under which a controller has a :class:`PushStrategy`."""

_SENT = "sent"


def push_update(
    sent: Sent,
    *,
    version: str | None = None,
    token_step: int | None = None,
    flush_cache: bool = True,
    pause_mode: PauseMode | None = None,
    mode: LoadMode = LoadMode.STAGED,
    scope: Scope = Scope.PARTIAL,
) -> Update:
    """The update that brings ``sent``, a chunk of the weights or (scope full) all of them."""
    return Update(
        source=f"push of {len(sent.tensors)} tensors",
        strategy=PUSHED,
        scope=scope,
        mode=mode,
        version=version,
        token_step=token_step,
        flush_cache=flush_cache,
        pause_mode=pause_mode,
        options={_SENT: sent},
        chunk=scope is Scope.PARTIAL,
    )


class PushStrategy:
    """A ``LoadStrategy`` for updates that :func:`push_update` makes."""

    def __repr__(self) -> str:
        return "<PushStrategy>"

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[_Pushed]:
        """Open what was sent. Raises: PayloadRefused; UpdateRejected for any other update."""
        sent = update.options.get(_SENT)
        if not isinstance(sent, Sent):
            raise UpdateRejected(
                f"{update.source!r} brings no tensors; a push comes with a payload, send one"
            )
        with ExitStack() as held:
            # Few files, on a thread that nobody may leave behind half way.
            payloads = await uninterrupted(
                anyio.to_thread.run_sync(held.enter_context, opened(sent), limiter=own_threads())
            )
            stage = _Pushed(payloads, sent)
            del payloads
            try:
                yield stage
            finally:
                await uninterrupted(anyio.to_thread.run_sync(held.close, limiter=own_threads()))


class _Pushed:
    """Everything is one bucket: it came in one payload, and lies in memory already."""

    def __init__(self, payloads: Mapping[str, Payload], sent: Sent) -> None:
        self._payloads = payloads
        self.manifest: Manifest = Manifest.of(
            TensorSpec(name=name, dtype=tensor.dtype, shape=tensor.shape)
            for name, tensor in sent.tensors.items()
        )

    def __repr__(self) -> str:
        return f"<_Pushed {len(self._payloads)} tensors>"

    def buckets(self) -> list[Bucket]:
        """One bucket."""
        return [list(self._payloads.items())]
