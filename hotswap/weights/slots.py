"""Where each checkpoint name lives: a catalogue of slots over a module's own memory.

Rules:

* A region is one piece of live memory under every name ``state_dict`` has for it;
  tied parameters are one region. It must be written as a whole or by split names.
* A slot is one acceptable checkpoint name: the rows of a region that it fills.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hotswap.types import TensorSpec
from hotswap.weights.casting import can_cast, why_not_plain
from hotswap.weights.compiled import plain_name
from hotswap.weights.mapping import FusedRule, Place, SplitName, split_names

__all__ = ["Catalogue", "Region", "Slot", "survey"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Region:
    """Live memory: ``tensor`` is the module's own parameter or buffer object.

    ``names`` are its live names, the first one canonical. A checkpoint has
    ``true_rows`` rows of it (None for a scalar); the rows after them are padding.
    ``refusal`` says why it cannot be updated, None when it can.
    """

    names: tuple[str, ...]
    tensor: torch.Tensor
    true_rows: int | None
    refusal: str | None = None

    @property
    def name(self) -> str:
        """The canonical live name."""
        return self.names[0]

    @property
    def stop(self) -> int:
        """End of the rows that a checkpoint fills; 1 for a scalar."""
        return 1 if self.true_rows is None else self.true_rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slot:
    """Rows ``start:stop`` of ``region`` receive ``tensor[source]`` of checkpoint ``spec``.

    ``spec`` has the checkpoint's shape and the live dtype. ``source`` selects the
    part that this rank keeps; empty means all of it. Rows are those of the region with
    its first ``depth`` dimensions taken as one.
    """

    spec: TensorSpec
    region: Region
    start: int
    stop: int
    source: tuple[slice, ...] = ()
    depth: int = 1

    @property
    def extent(self) -> tuple[int, int]:
        """Where it begins and ends in its region, comparable at every depth."""
        row = max(1, math.prod(self.region.tensor.shape[self.depth :]))
        return self.start * row, self.stop * row

    def destination(self) -> torch.Tensor:
        """The live rows, as a view. Shares memory with the module, now."""
        live = self.region.tensor.detach()
        if live.dim() == 0:
            return live
        rows = live if self.depth == 1 else live.view(-1, *live.shape[self.depth :])
        return rows[self.start : self.stop]

    def padding(self) -> torch.Tensor | None:
        """The padding rows that follow this slot's, as a view; None without any."""
        live, true_rows = self.region.tensor.detach(), self.region.true_rows
        if self.depth > 1 or self.stop != true_rows or self.stop == live.shape[0]:
            return None
        return live[self.stop :]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Catalogue:
    """Every acceptable checkpoint name, and the ones a full checkpoint has."""

    slots: Mapping[str, Slot]
    required: tuple[Slot, ...]
    regions: tuple[Region, ...]

    def renamed(self, places: Mapping[str, Place]) -> Catalogue:
        """The same with ``places`` as names too. Raises: ValueError for an odd place."""
        if not places:
            return self
        found = {name: self._slot_at(name, place) for name, place in places.items()}
        return Catalogue(
            slots={**self.slots, **found}, required=self.required, regions=self.regions
        )

    def requiring(self, places: Mapping[str, Place]) -> Catalogue:
        """The same, a full checkpoint having these names in place of the live ones."""
        named = self.renamed(places)
        by_region: dict[int, list[Slot]] = {}
        for name in places:
            by_region.setdefault(id(named.slots[name].region), []).append(named.slots[name])
        required: dict[str, Slot] = {}
        for slot in self.required:
            instead = _tiles(by_region.get(id(slot.region), [])) or [slot]
            required.update({each.spec.name: each for each in instead})
        return Catalogue(slots=named.slots, required=tuple(required.values()), regions=self.regions)

    def _slot_at(self, name: str, place: Place) -> Slot:
        region = self.slots[place.live].region
        stop = region.stop if place.stop is None else place.stop
        if place.depth > 1 and not region.tensor.is_contiguous():
            raise ValueError(f"{name} is a part of {place.live}, which is not contiguous")
        return _slot(SplitName(name, place.start, stop), region, depth=place.depth)


def survey(
    module: nn.Module, *, fused: Sequence[FusedRule], padded_rows: Mapping[str, int]
) -> Catalogue:
    """Catalogue every parameter and persistent buffer of ``module`` as it is now.

    Raises: ValueError when a rule or a padded name does not fit the module.
    """
    regions = _regions(module, padded_rows)
    slots: dict[str, Slot] = {}
    required: list[Slot] = []
    for region in regions:
        for alias in region.names:
            whole, parts = _slots_of(alias, region, fused)
            for slot in (whole, *parts):
                name = slot.spec.name
                if name in slots:
                    raise ValueError(
                        f"checkpoint name {name!r} means a part of {slots[name].region.name} and "
                        f"of {alias}; rename a part of the fused rule"
                    )
                slots[name] = slot
            if alias == region.name:
                required.extend(parts or (whole,))
    return Catalogue(slots=slots, required=tuple(required), regions=regions)


def _slots_of(
    alias: str, region: Region, fused: Sequence[FusedRule]
) -> tuple[Slot, tuple[Slot, ...]]:
    live = region.tensor
    rows = live.shape[0] if live.dim() else None
    parts = split_names(alias, rows, fused)
    if parts and region.true_rows != rows:
        raise ValueError(f"{alias} is fused and has padded rows; wanted one of the two")
    whole = _slot(SplitName(alias, 0, region.stop), region)
    return whole, tuple(_slot(part, region) for part in parts)


def _slot(part: SplitName, region: Region, *, depth: int = 1) -> Slot:
    live = region.tensor
    shape = (part.stop - part.start, *live.shape[depth:]) if live.dim() else ()
    spec = TensorSpec(name=part.name, dtype=live.dtype, shape=tuple(shape))
    return Slot(spec=spec, region=region, start=part.start, stop=part.stop, depth=depth)


def _tiles(slots: Sequence[Slot]) -> list[Slot]:
    """One slot for each extent where together they fill their region; none where they do not."""
    by_extent = {slot.extent: slot for slot in reversed(slots)}
    reach = 0
    for start, stop in sorted(by_extent):
        if start != reach:
            return []
        reach = stop
    region = slots[0].region if slots else None
    if region is None or reach != region.stop * max(1, math.prod(region.tensor.shape[1:])):
        return []
    return [by_extent[extent] for extent in sorted(by_extent)]


def _regions(module: nn.Module, padded_rows: Mapping[str, int]) -> tuple[Region, ...]:
    live = dict(_accepted(module))
    unknown = [name for name in padded_rows if name not in live]
    if unknown:
        raise ValueError(f"padded_rows names {unknown}, which the module does not have")
    by_place: dict[object, list[str]] = {}
    for name, tensor in live.items():
        by_place.setdefault(_place(tensor), []).append(name)
    return tuple(
        Region(
            names=tuple(names),
            tensor=live[names[0]],
            true_rows=_true_rows(live[names[0]], names, padded_rows),
            refusal=refusal,
        )
        for names, refusal in _with_refusals(list(by_place.values()), live)
    )


def _accepted(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    # state_dict is what says which buffers are persistent, without private fields.
    saved = set(module.state_dict(keep_vars=True))
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield plain_name(name), parameter
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if name in saved:
            yield plain_name(name), buffer


def _place(tensor: torch.Tensor) -> object:
    """Equal for two tensors that are the same elements of the same memory."""
    if why_not_plain(tensor) is not None or not tensor.numel():
        return id(tensor)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def _true_rows(
    live: torch.Tensor, names: Iterable[str], padded_rows: Mapping[str, int]
) -> int | None:
    if not live.dim():
        return None
    wanted = {padded_rows[name] for name in names if name in padded_rows}
    if len(wanted) > 1 or any(not 0 < rows <= live.shape[0] for rows in wanted):
        raise ValueError(
            f"padded_rows says {sorted(wanted)} true rows for {', '.join(names)}, which has "
            f"{live.shape[0]}; wanted one number within it"
        )
    return wanted.pop() if wanted else live.shape[0]


def _with_refusals(
    groups: list[list[str]], live: Mapping[str, torch.Tensor]
) -> Iterator[tuple[list[str], str | None]]:
    shared = _shared_by_halves({names[0]: live[names[0]] for names in groups})
    for names in groups:
        yield names, _refusal(names[0], live) or shared.get(names[0])


def _refusal(name: str, live: Mapping[str, torch.Tensor]) -> str | None:
    tensor = live[name]
    reason = why_not_plain(tensor)
    if reason is not None:
        return reason
    if any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        return "expanded: its elements share memory"
    dtype = str(tensor.dtype).removeprefix("torch.")
    if not can_cast(tensor.dtype, tensor.dtype):
        return f"of dtype {dtype}, which torch cannot copy"
    if isinstance(tensor, nn.Parameter):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return f"quantised: a parameter of dtype {dtype}"
        scale = _scale_beside(name, live) if tensor.element_size() == 1 else None
        if scale is not None:
            return f"quantised: {dtype}, scaled by {scale}"
    return None


def _scale_beside(name: str, live: Mapping[str, torch.Tensor]) -> str | None:
    owner = name.rpartition(".")[0]
    return next(
        (
            other
            for other in live
            if other.rpartition(".")[0] == owner and "scale" in other.rpartition(".")[2]
        ),
        None,
    )


def _shared_by_halves(live: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Names of tensors that overlap another one without being it, and the reason."""
    extents = sorted(
        (str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name)
        for name, tensor in live.items()
        # Only without gaps does an overlap of extents mean shared elements.
        if why_not_plain(tensor) is None and tensor.numel() and _is_dense(tensor)
    )
    refusals: dict[str, str] = {}
    reach_device, reach, holder = "", 0, ""
    for device, start, stop, name in extents:
        if device == reach_device and start < reach:
            refusals[name] = f"shares a part of its memory with {holder}"
            refusals[holder] = f"shares a part of its memory with {name}"
        if device != reach_device or stop > reach:
            reach_device, reach, holder = device, stop, name
    return refusals


def _is_dense(tensor: torch.Tensor) -> bool:
    extent = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return extent == tensor.numel()
