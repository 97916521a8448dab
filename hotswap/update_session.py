"""Many chunks that become one update: staged as they come, committed together.

Rules:

* A chunk is checked against the live model and copied into host memory while the server
  serves; nothing live is touched before the commit, which is one update with everything.
* A name that comes again replaces what came before, so that a chunk may be sent twice.
* A chunk that is refused leaves the session as it was. A session of a part of the weights
  then cannot be committed any more: nobody knows what it lacks. One of all of them (scope
  full) can, once every name has come.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from hotswap.command_queue import OneAtATime
from hotswap.errors import UpdateRejected
from hotswap.fetch import opened
from hotswap.foreign import words_of
from hotswap.seams import Engine
from hotswap.transaction import Transaction
from hotswap.types import LoadMode, Manifest, PauseMode, Payload, Placement, Scope, Update, member
from hotswap.uninterrupted import on_worker_thread
from hotswap.weights.pieces import spec_of
from hotswap.wire.pushed import Pushed
from hotswap.wire.strategy import PushStrategy, push_update

__all__ = ["ChunkReport", "Labels", "UpdateSession"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What a chunk, a begin or a commit says about the update that it is a part of.

    None and false say nothing, and keep what was said before.
    """

    version: str | None = None
    token_step: int | None = None
    flush_cache: bool = False
    pause_mode: PauseMode | None = None

    def then(self, later: Labels) -> Labels:
        """Both, what is said ``later`` winning; a flush or a pause asked for once stays."""
        modes = [mode for mode in (self.pause_mode, later.pause_mode) if mode is not None]
        return Labels(
            version=self.version if later.version is None else later.version,
            token_step=self.token_step if later.token_step is None else later.token_step,
            flush_cache=self.flush_cache or later.flush_cache,
            pause_mode=max(modes, key=lambda mode: mode.strength, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReport:
    """What one chunk brought: tensors and bytes as they will be live, how many of the tensors
    had been there before, and how long it took."""

    tensors: int
    bytes: int
    repeated: int
    elapsed_ms: float
    missing: tuple[str, ...]
    unknown: tuple[str, ...]


class UpdateSession:
    """What has come so far. Event-loop thread only; chunks are taken one after the other.

    It satisfies ``Pushed`` for its own commit. Whoever has one calls ``close`` in the end, which
    frees the host memory.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        update_id: str,
        scope: Scope = Scope.FULL,
        labels: Labels | None = None,
        unnamed: bool = False,
        selector: str = "all",
        wait_s: float = 30.0,
    ) -> None:
        """``unnamed``: chunks without an ``update_id`` belong to it. One chunk waits for another
        for ``wait_s`` at most."""
        self.update_id = update_id
        self.scope: Scope = member(Scope, scope, what="scope")
        self.labels: Labels = labels or Labels()
        self.unnamed = unnamed
        self.selector = selector
        self.chunks: int = 0
        self.turns: OneAtATime = OneAtATime(
            wait_s=wait_s,
            doing=f"a chunk or the commit of the update {update_id}",
            still="being worked on",
        )
        self._engine = engine
        self._held: dict[str, Transaction] = {}
        self._refusal: str | None = None
        self._touched = time.monotonic()

    def __repr__(self) -> str:
        return f"<UpdateSession {self.update_id} {self.chunks} chunks, {len(self._held)} tensors>"

    def shown(self) -> dict[str, object]:
        """What an operator wants to know of it, in JSON types."""
        return {
            "update_id": self.update_id,
            "selector": self.selector,
            "scope": self.scope,
            "updates": self.chunks,
            "tensors": len(self._held),
            "bytes": self._bytes,
            "version": self.labels.version,
            "idle_ms": self.idle_s * 1000.0,
            "refused": self._refusal,
        }

    @property
    def idle_s(self) -> float:
        """Seconds since something came for it; 0 while something is being done."""
        return 0.0 if self.turns.taken else time.monotonic() - self._touched

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self._held

    @property
    def _bytes(self) -> int:
        return sum(spec_of(name, payload).size_bytes for name, payload in self._payloads().items())

    def touch(self) -> None:
        """Something came for it."""
        self._touched = time.monotonic()

    def say(self, labels: Labels) -> None:
        """Add to what the update is to be called and to do."""
        self.labels = self.labels.then(labels)
        self.touch()

    def note_refusal(self, reason: str) -> None:
        """A chunk of it was refused."""
        self._refusal = reason
        self.touch()

    async def stage(self, pushed: Pushed, labels: Labels) -> ChunkReport:
        """Check a chunk and copy it into host memory; what brought it is let go.

        Cancelled, it leaves nothing behind. Raises: UpdateRejected, Busy (the session stays as it
        was).
        """
        started = time.perf_counter()
        async with self.turns.turn():
            try:
                transaction, missing, unknown = await self._staged(pushed)
            except UpdateRejected as error:
                self.note_refusal(words_of(error))
                raise
            repeated = self._adopt(transaction)
            self.chunks += 1
            self.say(labels)
        return ChunkReport(
            tensors=transaction.tensors_applied,
            bytes=transaction.bytes_applied,
            repeated=repeated,
            elapsed_ms=(time.perf_counter() - started) * 1000.0,
            missing=missing,
            unknown=unknown,
        )

    def note_empty(self, labels: Labels) -> None:
        """A chunk without a tensor came, which keeps the session alive."""
        self.chunks += 1
        self.say(labels)

    def note_update(self) -> None:
        """A whole update was done within it, at once."""
        self.chunks += 1
        self.touch()

    async def update(self) -> Update:
        """The update that a commit asks for: everything at once.

        Raises: UpdateRejected when it does not fit, or lacks something.
        """
        if self.scope is Scope.PARTIAL and self._refusal is not None:
            raise UpdateRejected(
                f"a chunk of the update {self.update_id} was refused ({self._refusal}); abort the "
                "update, and begin it again"
            )
        manifest = Manifest.of(spec_of(*item) for item in self._payloads().items())
        plan = await on_worker_thread(self._engine.plan, manifest, Scope.PARTIAL)
        labels = self.labels
        return push_update(
            self,
            source=f"session {self.update_id}",
            version=labels.version,
            token_step=labels.token_step,
            flush_cache=labels.flush_cache,
            pause_mode=labels.pause_mode,
            mode=LoadMode.STAGED,
            scope=self.scope if plan.missing else Scope.FULL,
            chunk=False,
        )

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Payload]]:
        """See ``Pushed``: what is held; it stays when the block has ended."""
        yield self._payloads()

    def close(self) -> None:
        """Free everything. Idempotent."""
        for transaction in set(self._held.values()):
            transaction.abort()
        self._held.clear()

    async def _staged(self, pushed: Pushed) -> tuple[Transaction, tuple[str, ...], tuple[str, ...]]:
        update = push_update(pushed, source=f"a chunk of session {self.update_id}")
        async with opened(PushStrategy(), update, Placement()) as stage:
            plan = await on_worker_thread(self._engine.plan, stage.manifest, Scope.PARTIAL)
            transaction = Transaction(self._engine, plan, mode=LoadMode.STAGED)
            try:
                for bucket in stage.buckets():
                    await transaction.write(bucket)
            except BaseException:
                transaction.abort()
                raise
        return transaction, plan.missing, plan.unknown

    def _adopt(self, transaction: Transaction) -> int:
        """Hold what a chunk brought, in place of what came before; how much that replaces."""
        names = list(transaction.staged)
        replaced = {name: self._held[name] for name in names if name in self._held}
        self._held.update(dict.fromkeys(names, transaction))
        still = set(self._held.values())
        for name, earlier in replaced.items():
            # Chunks that bring the same large tensor again and again take its memory once.
            earlier.forget([name])
            if earlier not in still:
                earlier.abort()
        return len(replaced)

    def _payloads(self) -> dict[str, Payload]:
        return {name: transaction.staged[name] for name, transaction in self._held.items()}
