"""The disk strategy behind gates: it stands still while opening, or while being read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import torch
from hotswap_disk import DiskStrategy

from hotswap.seams import Stage
from hotswap.types import Bucket, Manifest, Placement, Readable, TensorSpec, Update
from tests.process.failing import Gate

__all__ = ["SlowStrategy"]


class SlowStrategy:
    """``opening`` is waited for before the directory is opened, ``reading`` before every
    read of a tensor. ``held`` counts the stages that are open now."""

    def __init__(self, *, opening: Gate | None = None, reading: Gate | None = None) -> None:
        self._opening = opening
        self._reading = reading
        self.held = 0

    def __repr__(self) -> str:
        return f"<SlowStrategy opening={self._opening} reading={self._reading}>"

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        """As the disk strategy, later."""
        if self._opening is not None:
            await anyio.to_thread.run_sync(self._opening.wait, abandon_on_cancel=True)
        async with DiskStrategy().open(update, placement) as stage:
            self.held += 1
            try:
                yield stage if self._reading is None else _SlowStage(stage, self._reading)
            finally:
                self.held -= 1


class _SlowStage:
    def __init__(self, stage: Stage, gate: Gate) -> None:
        self._stage = stage
        self._gate = gate

    @property
    def manifest(self) -> Manifest:
        return self._stage.manifest

    def buckets(self) -> Iterator[Bucket]:
        for bucket in self._stage.buckets():
            slow = []
            for name, payload in bucket:
                assert not isinstance(payload, torch.Tensor), "wanted a safetensors checkpoint"
                slow.append((name, _SlowTensor(payload, self._gate)))
            yield slow


class _SlowTensor:
    def __init__(self, inner: Readable, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    @property
    def spec(self) -> TensorSpec:
        return self._inner.spec

    def read_into(self, out: torch.Tensor) -> None:
        self._gate.wait()
        self._inner.read_into(out)
