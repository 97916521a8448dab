"""An engine around any module, for tests of what a transaction leaves behind."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hotswap.seams import EnginePause, Plan
from hotswap.types import (
    Bucket,
    InFlightCounts,
    Manifest,
    PauseMode,
    Scope,
    TensorSpec,
    WeightStamp,
)
from hotswap.weights.target import WeightTarget

__all__ = ["HeldPieces", "HeldTensor", "ModuleEngine"]


class ModuleEngine:
    """Satisfies ``Engine`` with nothing in flight; writes tensor by tensor, and can fail.

    ``fails`` is asked before every tensor write, with the number of those before it,
    and before every commit, with None; true raises RuntimeError. ``written`` are the
    names in the order of their writes, ``stamps`` the commits that succeeded.
    """

    def __init__(
        self, target: WeightTarget, *, fails: Callable[[int | None], bool] = lambda _at: False
    ) -> None:
        self.target = target
        self.fails = fails
        self.written: list[str] = []
        self.buckets: list[tuple[str, ...]] = []
        self.stamps: list[WeightStamp] = []

    def __repr__(self) -> str:
        return f"<ModuleEngine {self.target!r}>"

    @property
    def in_flight(self) -> InFlightCounts:
        """Nothing."""
        return InFlightCounts()

    def manifest(self) -> Manifest:
        """The target's."""
        return self.target.manifest()

    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        """The target's."""
        return self.target.plan(manifest, scope)

    async def pause(self, mode: PauseMode) -> EnginePause:
        """A no-op."""
        return EnginePause(num_aborted=0, since=0.0)

    async def resume(self) -> None:
        """A no-op."""

    async def flush(self) -> int:
        """A no-op."""
        return 0

    async def write(self, plan: Plan, bucket: Bucket) -> None:
        """One tensor at a time. Raises: RuntimeError where ``fails`` says so."""
        self.buckets.append(tuple(name for name, _ in bucket))
        for name, payload in bucket:
            if self.fails(len(self.written)):
                raise RuntimeError(f"injected before {name}")
            self.written.append(name)
            self.target.write(plan, [(name, payload)])

    async def commit(self, stamp: WeightStamp) -> None:
        """Finish the target. Raises: RuntimeError where ``fails`` says so."""
        if self.fails(None):
            raise RuntimeError("injected at the commit")
        self.target.finish()
        self.stamps.append(stamp)


class HeldTensor:
    """A ``Readable`` over a tensor in memory. ``error``, if set, is raised by every read."""

    def __init__(self, name: str, tensor: torch.Tensor, *, error: Exception | None = None) -> None:
        self.tensor = tensor
        self.error = error
        self.reads: int = 0
        self._spec = TensorSpec(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._spec}>"

    @property
    def spec(self) -> TensorSpec:
        """Name, dtype and shape."""
        return self._spec

    def read_into(self, out: torch.Tensor) -> None:
        """Copy everything. Raises: ValueError when ``out`` is not as promised."""
        if out.shape != self.tensor.shape:
            raise ValueError(f"{self!r} read into {list(out.shape)}")
        self._fill(out.view(-1), 0)

    def _fill(self, out: torch.Tensor, start: int) -> None:
        self.reads += 1
        if self.error is not None:
            raise self.error
        if out.dtype != self.tensor.dtype or out.device.type != "cpu" or not out.is_contiguous():
            raise ValueError(f"{self!r} read into {out.dtype} {out.device} {out.stride()}")
        out.copy_(self.tensor.reshape(-1)[start : start + out.numel()])


class HeldPieces(HeldTensor):
    """A ``HeldTensor`` that can be read in pieces."""

    def read_piece(self, out: torch.Tensor, start: int) -> None:
        """Copy the elements ``start:start + len(out)``."""
        self._fill(out, start)
