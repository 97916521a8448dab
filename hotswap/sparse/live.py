"""From words of a checkpoint to elements of live memory: split, tied, cast, sharded.

Rule: what comes out is what a load of the whole checkpoint would make of the same memory, to
the bit; where that is not certain nothing comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from hotswap.sparse.patch import TensorPatch
from hotswap.sparse.scatter import Array, LiveChanges, Spot, spots_of
from hotswap.types import TensorSpec
from hotswap.weights.plan import TargetPlan
from hotswap.weights.slots import Slot

__all__ = ["NotExact", "layout_of", "live_changes"]

_WORD_BYTES = 8
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_Index = NDArray[np.int64]


class NotExact(Exception):
    """A patch cannot be applied to live memory so that it is as if all had been loaded."""


def live_changes(plan: TargetPlan, patches: Mapping[str, TensorPatch]) -> LiveChanges:
    """What ``patches`` change in the memory that ``plan`` is about. Reads and writes none of it.

    Blocks; any thread. Raises: NotExact.
    """
    left_out = {*plan.skipped, *_copies(plan, patches)}
    wanted = {name: patch for name, patch in patches.items() if name not in left_out}
    spots = [
        spot
        for name, patch in wanted.items()
        for spot in _spots(_slot(plan, name), plan.sources[name], patch)
    ]
    return LiveChanges(spots, tensors=sum(len(patch.words) > 0 for patch in wanted.values()))


def layout_of(plan: TargetPlan) -> tuple[object, ...]:
    """Where the live weights are, and how often torch has seen them written.

    It changes when an embedder moves or casts the module, or trains it. What writes past torch
    is not seen.
    """
    regions = {slot.region.name: slot.region.tensor for slot in plan.slots.values()}
    return tuple(
        (name, live.data_ptr(), live.dtype, live.shape, live.stride(), _writes(live))
        for name, live in regions.items()
    )


def _writes(live: torch.Tensor) -> int | None:
    return None if live.is_inference() else live._version


def _slot(plan: TargetPlan, name: str) -> Slot:
    slot = plan.slots.get(name)
    if slot is None:
        raise NotExact(f"{name} has changed and has no place in the live model")
    return slot


def _copies(plan: TargetPlan, patches: Mapping[str, TensorPatch]) -> Iterator[str]:
    """Names that are tied to another one, which is as they are."""
    for first, *others in plan.ties:
        one = patches.get(first)
        for name in others:
            other = patches.get(name)
            if one is None and other is None:
                continue
            if one is None or other is None or not one.is_as(other):
                raise NotExact(f"{first} and {name} are tied and may have become unequal")
            yield name


def _spots(slot: Slot, source: TensorSpec, patch: TensorPatch) -> Iterator[Spot]:
    out = slot.destination()
    if patch.length_bytes != source.size_bytes or source.dtype.itemsize not in _INTEGERS:
        raise NotExact(f"{source}: its patch is of {patch.length_bytes} bytes")
    if out.is_conj() or out.is_neg():
        raise NotExact(f"{source}: its live memory is not what its bytes say")
    if _is_wordwise(slot, source, out):
        live = _flat(out, out.numel()).view(torch.int64)
        values = patch.values.view(np.int64)
        yield from spots_of(live, patch.words, values, width=source.dtype.itemsize)
        return
    at, values = _elements(source, patch)
    index, kept = _places(slot, at, out)
    new = _cast(source, torch.from_numpy(values[kept]).view(source.dtype), out.dtype)
    extent = 1 + sum((size - 1) * step for size, step in zip(out.shape, out.stride(), strict=True))
    live = _flat(out, extent).view(new.dtype)
    if len(index):
        yield from spots_of(live, index, new.numpy(), width=out.element_size())


def _is_wordwise(slot: Slot, source: TensorSpec, out: torch.Tensor) -> bool:
    """Whether words of the checkpoint are words of the live memory."""
    as_it_is = not slot.source and out.dtype == source.dtype and out.is_contiguous()
    return as_it_is and not any(
        number % _WORD_BYTES
        for number in (
            source.size_bytes,
            out.storage_offset() * out.element_size(),
            out.data_ptr(),
        )
    )


def _flat(out: torch.Tensor, extent: int) -> torch.Tensor:
    return out.as_strided((extent,), (1,))


def _elements(source: TensorSpec, patch: TensorPatch) -> tuple[_Index, Array]:
    """Row-major positions of elements, and their values as integers."""
    width = source.dtype.itemsize
    each = _WORD_BYTES // width
    at = (patch.words.astype(np.int64)[:, None] * each + np.arange(each)).reshape(-1)
    values = patch.values.view(f"<i{width}")
    inside = at < source.numel
    return at[inside], values[inside]


def _places(slot: Slot, at: _Index, out: torch.Tensor) -> tuple[_Index, Array]:
    """Where of those elements that this rank keeps are in memory, and which these are."""
    kept = np.ones(len(at), np.bool_)
    if not slot.source and out.is_contiguous():
        return at, kept
    shape = slot.spec.shape
    coordinates = [axis.astype(np.int64) for axis in np.unravel_index(at, shape)]
    for number, part in enumerate(slot.source):
        start, stop, step = part.indices(shape[number])
        from_start = coordinates[number] - start
        kept &= (from_start >= 0) & (coordinates[number] < stop) & (from_start % step == 0)
        coordinates[number] = from_start // step
    index = np.zeros(len(at), np.int64)
    for axis, step in zip(coordinates, out.stride(), strict=True):
        index += axis * step
    return index[kept], kept


def _cast(source: TensorSpec, values: torch.Tensor, live: torch.dtype) -> torch.Tensor:
    """``values`` in the dtype ``live``, as integers."""
    if values.dtype != live:
        # What a cast makes of the bits of a NaN depends on where in a tensor it is.
        if bool(values.to(torch.float64).isnan().any()):
            raise NotExact(f"{source}: has NaNs near what has changed, and is cast to {live}")
        values = torch.empty(values.shape, dtype=live).copy_(values)
    return values.view(_INTEGERS[live.itemsize])
