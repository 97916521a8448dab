"""One checkpoint in host memory: payloads in, tensors of the live dtype out."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from hotswap.foreign import said
from hotswap.niceness import give_way
from hotswap.types import Bucket, TensorSpec
from hotswap.uninterrupted import uninterrupted
from hotswap.weights.memory import Memory, trim_heap
from hotswap.weights.pieces import Job, equal_bytes
from hotswap.weights.runs import bucket_jobs

__all__ = ["MAX_WORKERS", "Staging", "run_jobs"]

MAX_WORKERS = min(4, os.cpu_count() or 1)
"""Threads that stage at once: enough for the memory bus, few beside a serving engine."""

_ALIGNMENT = 64
_JOBS_PER_EXTRA_WORKER = 4


class Staging:
    """Owns the memory of every staged tensor until ``close``."""

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        """Reserve room for ``specs``; pages come when they are filled.

        What lies about unused goes back first, so that the process never holds much more
        than it did and ``specs``. Takes well under a millisecond. Raises: MemoryError.
        """
        trim_heap()
        self._memory = Memory(sum(_aligned(spec.size_bytes) for spec in specs))
        self._used_bytes = 0
        self._offsets: dict[str, int] = {}
        self.tensors: dict[str, torch.Tensor] = {}

    def __repr__(self) -> str:
        return f"<Staging {len(self.tensors)} tensors, {self._used_bytes} bytes>"

    async def fill(self, bucket: Bucket, specs: Mapping[str, TensorSpec]) -> None:
        """Copy or read every payload into memory of its own, cast to ``specs[name]``.

        Cancelled between pieces. Raises: whatever a source raises.
        """
        for name, _ in bucket:
            self._offsets[name] = self._used_bytes
            self.tensors[name] = self._allocate(specs[name])
        await run_jobs(bucket_jobs((self.tensors[name], payload, ()) for name, payload in bucket))

    async def unequal(self, name: str, others: Iterable[str]) -> list[str]:
        """Those of ``others`` whose staged bits differ from ``name``'s."""
        found: list[str] = []

        def compare(other: str) -> None:
            if not equal_bytes(self.tensors[name], self.tensors[other]):
                found.append(other)

        await run_jobs([partial(compare, other) for other in others])
        return found

    def forget(self, names: Iterable[str]) -> None:
        """Deliver these no more. Their memory goes back at once."""
        for name in names:
            tensor = self.tensors.pop(name)
            self._memory.give_back(self._offsets[name], tensor.nbytes)

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
    """Run ``jobs`` on threads that give way to forward passes, and wait for all of them.

    Raises: the first error; a RuntimeError in the place of one that is no Exception, for a
    plug-in that exits, or says that it was cancelled, is one that failed. Cancelled (or
    failing) between jobs; no thread is left running.
    """
    queue = deque(jobs)
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        with torch.no_grad():
            while not stop.is_set():
                try:
                    job = queue.popleft()
                except IndexError:
                    return
                try:
                    job()
                except BaseException as error:
                    # Whatever it is: this memory has not been filled.
                    errors.append(error)
                    stop.set()

    workers = min(MAX_WORKERS, 1 + len(queue) // _JOBS_PER_EXTRA_WORKER)
    # Threads of their own, for a niceness cannot be taken back.
    with ThreadPoolExecutor(workers, "hotswap-stage", initializer=give_way) as pool:
        running = [asyncio.wrap_future(pool.submit(work)) for _ in range(workers)]
        try:
            await asyncio.wait(running)
        finally:
            stop.set()
            await uninterrupted(_ended(running))
    errors += [error for one in running if (error := one.exception()) is not None]
    if not errors:
        return
    # Of its type: isinstance() would run a ``__class__`` of its own.
    if issubclass(type(errors[0]), Exception):
        raise errors[0]
    raise RuntimeError(f"a payload ended its reading with {said(errors[0])}") from errors[0]


async def _ended(running: Sequence[asyncio.Future[None]]) -> None:
    await asyncio.wait(running)
