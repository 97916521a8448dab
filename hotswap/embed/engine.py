"""An engine around any module whose forward passes go through a gate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import anyio
import anyio.to_thread
import torch

from hotswap.embed.gate import ForwardGate
from hotswap.foreign import on_a_thread
from hotswap.seams import EnginePause, Plan
from hotswap.types import (
    Bucket,
    InFlightCounts,
    Manifest,
    PauseMode,
    Scope,
    WeightStamp,
)
from hotswap.uninterrupted import on_worker_thread, own_threads
from hotswap.weights.compiled import refuse_frozen
from hotswap.weights.target import WeightTarget

__all__ = ["GatedEngine"]


class GatedEngine:
    """Satisfies ``Engine``, ``Inspector``, ``Patchable`` and ``Resettable`` for embedders.

    Requests are the embedder's: every pause, of whatever mode, waits for the forward
    passes inside the gate and ends none. ``flush`` drops what the embedder has computed
    with the weights and kept; it is called on a worker thread and returns how many
    entries went (nothing counts as none). Writes run on a worker thread, while the gate is closed.

    Raises: UpdateRejected for a module that is compiled with its weights folded in.
    """

    def __init__(
        self,
        target: WeightTarget,
        *,
        gate: ForwardGate,
        flush: Callable[[], int | None] | None = None,
        stamp: WeightStamp | None = None,
    ) -> None:
        refuse_frozen(target.module)
        self.target = target
        self.gate = gate
        self.stamp: WeightStamp = stamp or WeightStamp()
        self._flush = flush
        # Two worker threads must not write, or read what the other one writes.
        self._weights = threading.Lock()

    def __repr__(self) -> str:
        return f"<GatedEngine {self.target!r} {self.gate!r}>"

    @property
    def in_flight(self) -> InFlightCounts:
        """Nothing that an update would have to ask about: it waits for what is inside."""
        return InFlightCounts()

    def manifest(self) -> Manifest:
        """What a full update has to bring."""
        return self.target.manifest()

    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        """See ``seams.Engine``. Raises: UpdateRejected."""
        refuse_frozen(self.target.module)
        return self.target.plan(manifest, scope)

    async def pause(self, mode: PauseMode) -> EnginePause:
        """Close the gate. Cancelled: it is as it was. Raises: Overtaken."""
        since = await self.gate.close()
        return EnginePause(num_aborted=0, since=since)

    async def resume(self) -> None:
        """Open the gate."""
        self.gate.open()

    async def flush(self) -> int:
        """What the embedder's ``flush`` returns; 0 without one, or when it does not count."""
        if self._flush is None:
            return 0
        dropped: int | None = await on_worker_thread(self._flush)
        return dropped or 0

    async def write(self, plan: Plan, bucket: Bucket) -> None:
        """Copy a bucket into the live weights. Raises: RuntimeError while the gate is open."""
        await self._closed("write", partial(self.target.write, plan, bucket))

    async def look(self, job: Callable[[], None]) -> None:
        """See ``seams.Patchable``; forward passes go on beside it."""

        def run() -> None:
            with self._weights:
                job()

        await on_worker_thread(run)

    async def patch(self, plan: Plan | None, jobs: Sequence[Callable[[], None]]) -> None:
        """See ``seams.Patchable``. Raises: RuntimeError while the gate is open."""
        await self._closed("patch", partial(self.target.patch, jobs))

    async def commit(self, stamp: WeightStamp) -> None:
        """Finish the writes; adopt ``stamp``. Raises: RuntimeError while the gate is open."""
        await self._closed("commit", self.target.finish)
        self.stamp = stamp

    async def reset_weights(self, skipped: Sequence[str]) -> tuple[str, ...]:
        """See ``seams.Resettable``. Raises: RuntimeError while the gate is open."""
        names: list[str] = []
        await self._closed("reset", lambda: names.extend(self.target.reset(skipped)))
        return tuple(names)

    async def read_weight(self, name: str, rows: int) -> torch.Tensor:
        """See ``seams.Inspector``. Raises: KeyError."""

        def read() -> torch.Tensor:
            with self._weights:
                return self.target.read(name, rows)

        return await on_worker_thread(read)

    async def checksums(self) -> dict[str, str]:
        """See ``seams.Inspector``; no forward pass has to stop for it."""

        def sums() -> dict[str, str]:
            with self._weights:
                return self.target.checksums()

        return await on_worker_thread(sums)

    async def _closed(self, what: str, work: Callable[[], object]) -> None:
        if not self.gate.closed:
            raise RuntimeError(f"{what} while forward passes may run; pause the engine first")

        def run() -> None:
            with self._weights:
                # A pass has left the gate when it has been launched, and so has a copy.
                _synchronise(self.target.module)
                work()
                _synchronise(self.target.module)

        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(on_a_thread, run, limiter=own_threads())


def _synchronise(module: torch.nn.Module) -> None:
    """Wait until every CUDA device that has weights of ``module`` has nothing left to do."""
    for device in {weight.device for weight in module.parameters() if weight.is_cuda}:
        torch.cuda.synchronize(device)
