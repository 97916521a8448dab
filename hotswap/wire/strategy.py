"""A push as an update: what a payload describes, through the one transaction there is.

Rule: memory of the sender is open only while the stage is, and is let go however the update
ends, before anybody is told how it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from typing import TypeGuard

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
    Update,
)
from hotswap.uninterrupted import own_threads, uninterrupted
from hotswap.weights.pieces import spec_of
from hotswap.wire.bucket import Sent
from hotswap.wire.pushed import Pushed
from hotswap.wire.segments import opened

__all__ = ["PUSHED", "PushStrategy", "comes_in_order", "mark_of", "push_update", "pushed_by"]

PUSHED = "push"
"""The name under which a controller has a :class:`PushStrategy`."""

_PUSHED = "pushed"

# A bucket takes some turns of the event loop, and a thread: not for every norm of a model.
_RUN_BYTES = 32 * 2**20


def push_update(
    pushed: Pushed | Sent,
    *,
    source: str = "a push",
    version: str | None = None,
    token_step: int | None = None,
    flush_cache: bool = True,
    pause_mode: PauseMode | None = None,
    mode: LoadMode = LoadMode.STAGED,
    scope: Scope = Scope.PARTIAL,
    chunk: bool | None = None,
) -> Update:
    """The update that brings ``pushed``; ``source`` is what logs call it.

    ``chunk`` says that it is one of several that make a whole together; by default what is
    not all of the weights (scope full) is one.
    """
    return Update(
        source=source,
        strategy=PUSHED,
        scope=scope,
        mode=mode,
        version=version,
        token_step=token_step,
        flush_cache=flush_cache,
        pause_mode=pause_mode,
        options={_PUSHED: _Opening(pushed) if isinstance(pushed, Sent) else pushed},
        chunk=scope == Scope.PARTIAL if chunk is None else chunk,
    )


def pushed_by(update: Update) -> object:
    """What :func:`push_update` was given; None for any other update."""
    return update.options.get(_PUSHED)


def comes_in_order(update: Update) -> bool:
    """Whether what is pushed is still coming: it can be read once, from its beginning on."""
    return bool(getattr(pushed_by(update), "in_order", False))


def mark_of(update: Update) -> str | None:
    """By what a payload that comes again is known; None where nothing tells it."""
    mark = getattr(pushed_by(update), "mark", None)
    return mark if isinstance(mark, str) else None


class PushStrategy:
    """A ``LoadStrategy`` for updates that :func:`push_update` makes."""

    def __repr__(self) -> str:
        return "<PushStrategy>"

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[_PushedStage]:
        """Open what was sent. Raises: PayloadRefused; UpdateRejected for any other update."""
        pushed = pushed_by(update)
        if not _brings_tensors(pushed):
            raise UpdateRejected(
                f"{update.source!r} brings no tensors; a push comes with a payload, send one"
            )
        with ExitStack() as held:
            # Few files, on a thread that nobody may leave behind half way.
            payloads = await uninterrupted(
                anyio.to_thread.run_sync(held.enter_context, pushed.opened(), limiter=own_threads())
            )
            stage = _PushedStage(payloads, in_order=comes_in_order(update))
            del payloads
            try:
                yield stage
            finally:
                await uninterrupted(anyio.to_thread.run_sync(held.close, limiter=own_threads()))


def _brings_tensors(pushed: object) -> TypeGuard[Pushed]:
    return callable(getattr(pushed, "opened", None))


class _Opening:
    """Satisfies ``Pushed`` by opening what was sent, as often as it is asked to."""

    def __init__(self, sent: Sent) -> None:
        self._sent = sent

    def opened(self) -> AbstractContextManager[Mapping[str, Payload]]:
        return opened(self._sent)


class _PushedStage:
    """Everything is one bucket: it came in one payload, and lies in memory already.

    What can only be read ``in_order``, since it is still coming, is in buckets of some megabytes,
    so that it shows how much has come.
    """

    def __init__(self, payloads: Mapping[str, Payload], *, in_order: bool = False) -> None:
        self._payloads = payloads
        self._in_order = in_order
        self.manifest: Manifest = Manifest.of(
            spec_of(name, payload) for name, payload in payloads.items()
        )

    def __repr__(self) -> str:
        return f"<_PushedStage {len(self._payloads)} tensors>"

    def buckets(self) -> list[Bucket]:
        """One bucket, or several with what comes first in the first."""
        items = list(self._payloads.items())
        return _runs(items) if self._in_order else [items]


def _runs(items: Iterable[tuple[str, Payload]]) -> list[Bucket]:
    """Neighbours together, up to ``_RUN_BYTES`` where one alone has not more."""
    runs = list[list[tuple[str, Payload]]]()
    room = 0
    for name, payload in items:
        size = spec_of(name, payload).size_bytes
        if not runs or size > room:
            runs.append([])
            room = _RUN_BYTES
        runs[-1].append((name, payload))
        room -= size
    return list[Bucket](runs)
