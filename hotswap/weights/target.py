"""The live weights of any ``nn.Module``, under the names of its checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from hotswap.errors import UpdateRejected
from hotswap.seams import Plan
from hotswap.types import Bucket, Manifest, Payload, Scope, member
from hotswap.weights.casting import can_cast, why_not_plain
from hotswap.weights.checksum import checksum
from hotswap.weights.compiled import plain_name
from hotswap.weights.live_memory import LiveMemory
from hotswap.weights.mapping import CheckpointNaming, FusedRule
from hotswap.weights.noise import fill_with_noise
from hotswap.weights.pieces import Job, spec_of
from hotswap.weights.plan import TargetPlan, make_plan
from hotswap.weights.runs import bucket_jobs
from hotswap.weights.slots import Catalogue, Slot, survey
from hotswap.weights.staging import MAX_WORKERS

__all__ = ["Recomputes", "WeightTarget"]

_INLINE_BYTES = 2**20
# More threads gain nothing on the memory bus.
_MAX_WRITERS = 16


@runtime_checkable
class Recomputes(Protocol):
    """A submodule with tensors derived from its weights (a fused scale, a ``weight + 1``)."""

    def hotswap_recompute(self) -> None:
        """Recompute them in place; called once per commit, without gradients."""
        ...


class WeightTarget:
    """Checkpoint names on one side, views of live parameters on the other.

    Writes are in place: addresses, tied storages and captured CUDA graphs stay
    valid. Names are those of ``state_dict``; ``fused`` adds the split names inside
    fused parameters. ``padded_rows`` maps a live name to the rows a checkpoint has
    of it (the rest is kept zero). ``skipped`` are globs, matched by a whole name or
    its tail after a dot, for source tensors that no live tensor has; a name that the
    model has is never skipped. ``naming`` knows names that no such rule tells.
    Non-persistent buffers are never touched.

    ``plan``, ``manifest``: any thread. The rest: the thread that runs the module.
    Raises: ValueError when a rule does not fit the module.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        fused: Sequence[FusedRule] = (),
        padded_rows: Mapping[str, int] | None = None,
        skipped: Sequence[str] = (),
        naming: CheckpointNaming | None = None,
    ) -> None:
        self.module = module
        self._fused = tuple(fused)
        self._padded_rows = dict(padded_rows or {})
        self._skipped = tuple(skipped)
        self._naming = naming
        self._post_load: list[Callable[[], None]] = []
        self._unfinished = False
        self._memory = LiveMemory()
        self._survey()

    def __repr__(self) -> str:
        return f"<WeightTarget {type(self.module).__name__} {len(self.manifest())} tensors>"

    def _survey(self) -> Catalogue:
        # Afresh each time: embedders move, cast and re-tie modules.
        found = survey(self.module, fused=self._fused, padded_rows=self._padded_rows)
        return found if self._naming is None else found.requiring(self._naming.usual)

    def after_load(self, hook: Callable[[], None]) -> None:
        """Call ``hook`` at every ``finish``, after the modules' ``hotswap_recompute``."""
        self._post_load.append(hook)

    def manifest(self) -> Manifest:
        """Names (split, one per tied storage), live dtypes and shapes of a full checkpoint."""
        return Manifest.of(slot.spec for slot in self._survey().required)

    def plan(self, manifest: Manifest, scope: Scope) -> TargetPlan:
        """Validate a source; writes nothing. Raises: UpdateRejected with all that is wrong."""
        if self._memory.released_bytes:
            raise UpdateRejected(
                'the memory of the weights is released; wake the tag "weights" first, then update'
            )
        catalogue = self._survey()
        if self._naming is not None:
            usual = self._naming.usual
            found = self._naming.find(manifest.names)
            odd = {name: place for name, place in found.items() if usual.get(name) != place}
            catalogue = catalogue.renamed(odd)
        wanted = member(Scope, scope, what="scope")
        return make_plan(catalogue, manifest, scope=wanted, skipped=self._is_skipped)

    def _is_skipped(self, name: str) -> bool:
        """Whether a source may have ``name``, which no live tensor has."""
        if any(fnmatchcase(name, rule) or fnmatchcase(name, f"*.{rule}") for rule in self._skipped):
            return True
        return self._naming is not None and self._naming.ignores(name)

    def write(self, plan: Plan, bucket: Bucket) -> None:
        """Put every payload in its place. Absolute values: twice is once.

        Names that the plan skipped are ignored. Raises: UpdateRejected before the
        first write when the bucket is not what was planned; OSError and RuntimeError
        from a source or a copy, the bucket then half written.
        """
        if not isinstance(plan, TargetPlan):
            raise TypeError(f"{plan!r} is not a plan of this target; wanted what plan() returned")
        self._check_resident()
        planned = [
            _planned(plan, name, payload) for name, payload in bucket if name not in plan.skipped
        ]
        self._unfinished = True
        # Inference mode may write normal tensors and those made under it alike.
        with torch.inference_mode():
            for_threads: list[tuple[torch.Tensor, Payload, tuple[slice, ...]]] = []
            for slot, payload in planned:
                out = slot.destination()
                if isinstance(payload, torch.Tensor) and out.device.type != "cpu":
                    out.copy_(payload[slot.source])
                else:
                    for_threads.append((out, payload, slot.source))
            _run(bucket_jobs(for_threads), sum(slot.spec.size_bytes for slot, _ in planned))
            for slot, _ in planned:
                padding = slot.padding()
                if padding is not None:
                    padding.zero_()

    def patch(self, jobs: Sequence[Job]) -> None:
        """Run ``jobs``, which change elements of live weights in place. Raises: what one raises,
        once none of them runs any more."""
        self._unfinished = True
        with torch.inference_mode():
            _run(list(jobs), _INLINE_BYTES)

    def finish(self) -> None:
        """Recompute derived tensors and run the hooks, once for all writes since the last.

        A no-op when nothing was written. Raises: whatever a hook raises; the next
        call then runs all of them again.
        """
        if not self._unfinished:
            return
        with torch.no_grad():
            for submodule in self.module.modules():
                # What isinstance(submodule, Recomputes) asks, at a tenth of its cost:
                # generation waits for this.
                recompute = getattr(submodule, "hotswap_recompute", None)
                if recompute is not None:
                    recompute()
            for hook in self._post_load:
                hook()
        self._unfinished = False

    def reset(self, skipped: Sequence[str]) -> tuple[str, ...]:
        """Fill with noise what a full update fills; the canonical live names.

        Weights that have one of ``skipped`` in a name of theirs stay as they are.
        """
        self._check_resident()
        spoilt = [
            region
            for region in self._survey().regions
            if region.refusal is None
            and not any(part in name for name in region.names for part in skipped)
        ]
        self._unfinished = True
        for region in spoilt:
            live = region.tensor.detach()
            fill_with_noise(live if region.true_rows is None else live[: region.true_rows])
        return tuple(region.name for region in spoilt)

    def release(self) -> int:
        """Give the system back the memory of what a full update fills; how many bytes.

        Until :meth:`restore` nothing is planned, written or read, and the module must not
        run. Raises: IllegalCommand, as ``LiveMemory.release``.
        """
        filled = [region.tensor for region in self._survey().regions if region.refusal is None]
        own = {id(tensor) for tensor in filled}
        kept = [tensor for _, tensor in _all_live(self.module) if id(tensor) not in own]
        self._unfinished = True
        with torch.no_grad():
            return self._memory.release(filled, kept=kept)

    def restore(self) -> int:
        """Take memory for it again, with arbitrary values; how many bytes. A full update is
        what makes them weights. Raises: MemoryError."""
        with torch.no_grad():
            return self._memory.restore()

    def _check_resident(self) -> None:
        if self._memory.released_bytes:
            raise RuntimeError(
                "the memory of the weights is released, so there are none; restore it first"
            )

    def read(self, name: str, rows: int) -> torch.Tensor:
        """First ``rows`` of dimension 0 of a weight: a CPU copy, float32 or integer.

        ``name`` is a live name (any buffer included) or a checkpoint name, with or
        without ``model.`` in front. Padding rows are not shown. Raises: KeyError for
        any other name, and for a tensor without plain memory; RuntimeError while released.
        """
        self._check_resident()
        live = self._find(name)
        if live is None or why_not_plain(live) is not None:
            reason = "no such weight" if live is None else why_not_plain(live)
            raise KeyError(f"{name}: {reason}; names are those of the live model or its checkpoint")
        shown = live if live.dim() == 0 else live[: max(rows, 0)]
        if shown.is_complex():
            shown = torch.view_as_real(shown)
        if shown.dtype is torch.bool:
            return shown.to("cpu", torch.uint8, copy=True)
        dtype = torch.float32 if shown.is_floating_point() else shown.dtype
        return shown.to("cpu", dtype, copy=True)

    def _find(self, name: str) -> torch.Tensor | None:
        catalogue = self._survey()
        buffers = {
            plain_name(live): buffer
            for live, buffer in self.module.named_buffers(remove_duplicate=False)
        }
        for known in (name, f"model.{name}", name.removeprefix("model.")):
            if known in catalogue.slots:
                return catalogue.slots[known].destination()
            if known in buffers:
                return buffers[known].detach()
        return None

    def checksums(self) -> dict[str, str]:
        """xxh3-64 of every parameter and buffer, persistent or not, aliases included.

        Padding rows count. Raises: ValueError naming a tensor without plain memory;
        RuntimeError while released.
        """
        self._check_resident()
        found: dict[str, str] = {}
        known: dict[int, str] = {}
        for name, tensor in _all_live(self.module):
            try:
                found[name] = known.get(id(tensor)) or checksum(tensor)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            known[id(tensor)] = found[name]
        return found


def _all_live(module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield plain_name(name), parameter
    for name, buffer in module.named_buffers(remove_duplicate=False):
        yield plain_name(name), buffer


def _planned(plan: TargetPlan, name: str, payload: Payload) -> tuple[Slot, Payload]:
    slot = plan.slots.get(name)
    if slot is None:
        raise UpdateRejected(f"tensor {name!r} is not in the plan; deliver what the manifest named")
    seen = spec_of(name, payload)
    if seen.shape != slot.spec.shape or not can_cast(seen.dtype, slot.spec.dtype):
        raise UpdateRejected(f"came as {seen}, wanted {slot.spec}; deliver what the manifest named")
    return slot, payload


def _run(jobs: list[Job], size_bytes: int) -> None:
    """Run every job, on several threads when it pays. Raises: what the first failure raised.

    Threads take jobs one by one. torch's own pool, which splits each tensor evenly
    and waits for the slower half, takes half as long again beside busy processes.
    """
    if len(jobs) < 2 or size_bytes < _INLINE_BYTES:
        for job in jobs:
            job()
        return
    queue = deque(jobs)
    workers = max(MAX_WORKERS, min(_MAX_WRITERS, torch.get_num_threads()))
    with ThreadPoolExecutor(workers, thread_name_prefix="hotswap-write") as pool:
        for done in [pool.submit(_work, queue) for _ in range(workers)]:
            done.result()


def _work(queue: deque[Job]) -> None:
    # The mode is a thread's own.
    with torch.inference_mode():
        while True:
            try:
                job = queue.popleft()
            except IndexError:
                return
            try:
                job()
            except BaseException:
                queue.clear()
                raise
