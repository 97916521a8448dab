"""One checkpoint in host memory: payloads in, tensors of the live dtype out."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial

import anyio
import anyio.from_thread
import anyio.to_thread
import torch

from hotswap.types import Bucket, TensorSpec
from hotswap.weights.memory import Memory
from hotswap.weights.pieces import Job, equal_bytes, fill_jobs

__all__ = ["MAX_WORKERS", "Staging", "run_jobs"]

MAX_WORKERS = min(4, os.cpu_count() or 1)
"""Threads that stage at once: enough for the memory bus, few beside a serving engine."""

_ALIGNMENT = 64
_JOBS_PER_EXTRA_WORKER = 4


class Staging:
    """Owns the memory of every staged tensor until ``close``."""

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        """Reserve room for ``specs``; pages come when they are filled. Raises: MemoryError."""
        self._memory = Memory(sum(_aligned(spec.size_bytes) for spec in specs))
        self._used_bytes = 0
        self.tensors: dict[str, torch.Tensor] = {}

    def __repr__(self) -> str:
        return f"<Staging {len(self.tensors)} tensors, {self._used_bytes} bytes>"

    async def fill(self, bucket: Bucket, specs: Mapping[str, TensorSpec]) -> None:
        """Copy or read every payload into memory of its own, cast to ``specs[name]``.

        Cancelled between pieces. Raises: whatever a source raises.
        """
        jobs: list[Job] = []
        for name, payload in bucket:
            out = self._allocate(specs[name])
            self.tensors[name] = out
            jobs.extend(fill_jobs(out, payload))
        await run_jobs(jobs)

    async def unequal(self, name: str, others: Iterable[str]) -> list[str]:
        """Those of ``others`` whose staged bits differ from ``name``'s."""
        found: list[str] = []

        def compare(other: str) -> None:
            if not equal_bytes(self.tensors[name], self.tensors[other]):
                found.append(other)

        await run_jobs([partial(compare, other) for other in others])
        return found

    def forget(self, names: Iterable[str]) -> None:
        """Deliver these no more; their memory goes with the rest."""
        for name in names:
            del self.tensors[name]

    def close(self) -> None:
        """Give everything back to the system. Idempotent."""
        self.tensors.clear()
        self._memory.close()

    def _allocate(self, spec: TensorSpec) -> torch.Tensor:
        out = self._memory.tensor(self._used_bytes, spec)
        self._used_bytes += _aligned(spec.size_bytes)
        return out


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


async def run_jobs(jobs: Iterable[Job]) -> None:
    """Run ``jobs`` on worker threads, and wait for all of them. Raises: the first error.

    Cancelled (or failing) between jobs; no thread is left running.
    """
    queue = deque(jobs)
    stop = threading.Event()
    errors: list[Exception] = []

    def work() -> None:
        with torch.no_grad():
            while queue and not stop.is_set():
                anyio.from_thread.check_cancelled()
                try:
                    job = queue.popleft()
                except IndexError:
                    return
                try:
                    job()
                except Exception as error:
                    errors.append(error)
                    stop.set()

    workers = min(MAX_WORKERS, 1 + len(queue) // _JOBS_PER_EXTRA_WORKER)
    limiter = anyio.CapacityLimiter(workers)
    try:
        async with anyio.create_task_group() as group:
            for _ in range(workers):
                group.start_soon(lambda: anyio.to_thread.run_sync(work, limiter=limiter))
    finally:
        stop.set()
    if errors:
        raise errors[0]
