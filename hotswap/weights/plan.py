"""The one validator: a manifest against the live model, before the first write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hotswap.errors import UpdateRejected
from hotswap.seams import Plan
from hotswap.types import Manifest, Scope, TensorSpec
from hotswap.weights.casting import can_cast
from hotswap.weights.slots import Catalogue, Slot

__all__ = ["SHOWN", "CheckedPlan", "TargetPlan", "listing", "make_plan"]

SHOWN = 20
"""Names that an error message lists of each kind; the rest is a count."""


@runtime_checkable
class CheckedPlan(Plan, Protocol):
    """A plan that also knows what the source promised and what must be equal."""

    @property
    def sources(self) -> Mapping[str, TensorSpec]:
        """Checkpoint name -> what the manifest said, for every name in ``specs``."""
        ...

    @property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """Groups of delivered names that fill the same live memory: bytes must be equal."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetPlan:
    """A validated update of a ``WeightTarget``; satisfies ``Plan`` and ``CheckedPlan``.

    Valid while the module keeps its parameter objects. ``skipped`` are names of the
    source that no live tensor has and a rule says to ignore.
    """

    slots: Mapping[str, Slot]
    specs: Mapping[str, TensorSpec]
    sources: Mapping[str, TensorSpec]
    ties: tuple[tuple[str, ...], ...]
    missing: tuple[str, ...]
    skipped: tuple[str, ...]

    @property
    def unknown(self) -> tuple[str, ...]:
        """``skipped``, under the name that the seam has for it."""
        return self.skipped

    def __repr__(self) -> str:
        return (
            f"<TargetPlan {len(self.slots)} tensors, {len(self.missing)} missing, "
            f"{len(self.skipped)} skipped>"
        )


def listing(label: str, items: Sequence[object]) -> str:
    """``3 missing: a, b, c``, cut after ``SHOWN`` items."""
    shown = ", ".join(str(item) for item in items[:SHOWN])
    rest = len(items) - SHOWN
    return f"{len(items)} {label}: {shown}{f' and {rest} more' if rest > 0 else ''}"


def make_plan(
    catalogue: Catalogue, manifest: Manifest, *, scope: Scope, skipped: Callable[[str], bool]
) -> TargetPlan:
    """Check every tensor of ``manifest``. Raises: UpdateRejected with all that is wrong.

    ``skipped`` says which names that no live tensor has may be left alone.
    """
    unknown = [name for name in manifest.names if name not in catalogue.slots]
    ignored = [name for name in unknown if skipped(name)]
    slots = {name: catalogue.slots[name] for name in manifest.names if name in catalogue.slots}
    missing = _missing(catalogue, slots)
    faults = {
        "unknown": [name for name in unknown if name not in set(ignored)],
        "missing": missing if scope is Scope.FULL else [],
        "not supported": _refused(catalogue, slots, scope),
        "of the wrong shape": _wrong_shapes(slots, manifest),
        "of the wrong dtype": _wrong_dtypes(slots, manifest),
        "delivered both fused and split": _conflicts(slots),
    }
    found = [listing(label, items) for label, items in faults.items() if items]
    if not slots:
        found.insert(0, f"0 of its {len(manifest)} tensors belong to the live model")
    if found:
        raise UpdateRejected(
            f"the source does not fit the live model; {'; '.join(found)}. Nothing was written; "
            "send the names, shapes and dtypes of the live model"
        )
    return TargetPlan(
        slots=slots,
        specs={name: slot.spec for name, slot in slots.items()},
        sources={name: manifest[name] for name in slots},
        ties=_ties(slots),
        missing=tuple(missing),
        skipped=tuple(ignored),
    )


def _missing(catalogue: Catalogue, slots: Mapping[str, Slot]) -> list[str]:
    by_region: dict[int, list[tuple[int, int]]] = {}
    for slot in slots.values():
        by_region.setdefault(id(slot.region), []).append(slot.extent)
    runs = {region: _runs(extents) for region, extents in by_region.items()}
    return [
        wanted.spec.name
        for wanted in catalogue.required
        if not _is_covered(wanted.extent, runs.get(id(wanted.region), []))
    ]


def _runs(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The extents, those that touch each other as one."""
    runs: list[tuple[int, int]] = []
    for start, stop in sorted(extents):
        if runs and start <= runs[-1][1]:
            runs[-1] = (runs[-1][0], max(runs[-1][1], stop))
        else:
            runs.append((start, stop))
    return runs


def _is_covered(wanted: tuple[int, int], runs: Iterable[tuple[int, int]]) -> bool:
    return any(start <= wanted[0] and wanted[1] <= stop for start, stop in runs)


def _refused(catalogue: Catalogue, slots: Mapping[str, Slot], scope: Scope) -> list[str]:
    touched = (
        catalogue.regions
        if scope is Scope.FULL
        else dict.fromkeys(slot.region for slot in slots.values())
    )
    return [f"{region.name} ({region.refusal})" for region in touched if region.refusal]


def _wrong_shapes(slots: Mapping[str, Slot], manifest: Manifest) -> list[str]:
    return [
        f"{name} is {list(manifest[name].shape)}, wanted {list(slot.spec.shape)}"
        for name, slot in slots.items()
        if manifest[name].shape != slot.spec.shape
    ]


def _wrong_dtypes(slots: Mapping[str, Slot], manifest: Manifest) -> list[str]:
    return [
        f"{name} is {_short(manifest[name])}, wanted {_short(slot.spec)}"
        f"{' or another float' if slot.spec.dtype.is_floating_point else ''}"
        for name, slot in slots.items()
        if slot.region.refusal is None and not can_cast(manifest[name].dtype, slot.spec.dtype)
    ]


def _short(spec: TensorSpec) -> str:
    return str(spec.dtype).removeprefix("torch.")


def _groups(slots: Mapping[str, Slot]) -> dict[tuple[int, int, int], list[Slot]]:
    groups: dict[tuple[int, int, int], list[Slot]] = {}
    for slot in slots.values():
        groups.setdefault((id(slot.region), *slot.extent), []).append(slot)
    return groups


def _ties(slots: Mapping[str, Slot]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(slot.spec.name for slot in group)
        for group in _groups(slots).values()
        if len(group) > 1
    )


def _conflicts(slots: Mapping[str, Slot]) -> list[str]:
    by_region: dict[int, list[tuple[int, int, int]]] = {}
    firsts: list[Slot] = []
    for (region, start, stop), group in _groups(slots).items():
        by_region.setdefault(region, []).append((start, -stop, len(firsts)))
        firsts.append(group[0])
    found = sorted(pair for extents in by_region.values() for pair in _overlaps(sorted(extents)))
    return [f"{firsts[one].spec.name} with {firsts[other].spec.name}" for one, other in found]


def _overlaps(extents: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Numbers of extents ``(start, -stop, number)``, in order, that meet the one that reaches
    furthest before them. A region may have thousands: not every pair is looked at."""
    reach, holder = 0, -1
    for start, negative_stop, number in extents:
        if holder >= 0 and start < reach:
            yield min(holder, number), max(holder, number)
        if -negative_stop > reach or holder < 0:
            reach, holder = -negative_stop, number
