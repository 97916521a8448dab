"""Changed elements of live memory: keep what is there, write what comes, put it back.

Rules:

* Live memory is looked up at each access, on the thread that owns it: between two of them a
  server may have let it go, and has other memory then, or none.
* What can be converted is converted while staging; a write does nothing but write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from hotswap.native import compiled, has_native
from hotswap.sparse.kernel import scatter_words
from hotswap.weights.pieces import Job

__all__ = ["Array", "LiveChanges", "Spot", "spots_of"]

Array: TypeAlias = NDArray[Any]

_PIECE = 2**17
"""Units that a thread writes at once; a look keeps a forward pass waiting for two of these."""

_TOGETHER = 2**15
"""Fewer units than this are not worth a job of their own."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Spot(Protocol):
    """Some units (words, or elements) of one tensor that change.

    ``on_device``: it is written on the thread that runs the model, in the order of its stream.
    """

    on_device: bool
    units: int
    size_bytes: int

    def keep(self) -> int:
        """Remember what is there; how many elements become others. Raises: RuntimeError."""
        ...

    def write(self) -> None:
        """Put the new values in their places. Raises: RuntimeError."""
        ...

    def put_back(self) -> None:
        """What was there is there again. Raises: RuntimeError."""
        ...


class LiveChanges:
    """Everything that one sparse commit changes.

    ``elements`` and ``size_bytes`` are known once every job of ``looks`` has run.
    """

    def __init__(self, spots: Sequence[Spot], *, tensors: int) -> None:
        self._spots = tuple(spots)
        self.tensors: int = tensors
        self.elements: int = 0

    def __repr__(self) -> str:
        return f"<LiveChanges {self.tensors} tensors, {self.size_bytes} bytes>"

    @property
    def size_bytes(self) -> int:
        """Bytes of live memory that are written."""
        return sum(spot.size_bytes for spot in self._spots)

    def looks(self) -> list[Job]:
        """Jobs that remember what is there, each a few milliseconds long."""
        return [partial(self._keep, group) for group in _groups(self._spots, 2 * _PIECE)]

    def writes(self) -> list[Job]:
        """Jobs that together write the new values, in any order, on any threads."""
        return _jobs(self._spots, lambda spot: spot.write)

    def undoing(self) -> list[Job]:
        """Jobs that together put back what ``looks`` has remembered."""
        return _jobs(self._spots, lambda spot: spot.put_back)

    def _keep(self, spots: Sequence[Spot]) -> None:
        self.elements += sum(spot.keep() for spot in spots)


def spots_of(live: torch.Tensor, index: Array, new: Array, *, width: int) -> Iterator[Spot]:
    """``live`` [units], integers, gets ``new`` at ``index`` (ascending); ``new`` is of its dtype.

    ``width``: bytes of the elements that are counted, of which a unit has one or more.
    """
    if live.device.type != "cpu":
        yield _DeviceSpot(live, index, new, width=width)
        return
    native = has_native() and live.dtype is torch.int64 and index.dtype == np.uint32
    if not native:
        # numpy would convert it at every access.
        index = index.astype(np.intp)
    for at in range(0, len(index), _PIECE):
        part = slice(at, at + _PIECE)
        yield _HostSpot(live, index[part], new[part], width=width, native=native)


class _HostSpot:
    on_device = False

    def __init__(
        self, live: torch.Tensor, index: Array, new: Array, *, width: int, native: bool
    ) -> None:
        self._live = live
        self._index = index
        self._new = new
        self._old = new[:0]
        self._width = width
        self._set = compiled(scatter_words) if native else _set
        self.units = len(index)
        self.size_bytes = new.nbytes
        if native:
            # Compiled now, and not while generation waits.
            self._set(new[:0], index[:0], new[:0])

    def __repr__(self) -> str:
        return f"<_HostSpot {self.units} units>"

    def keep(self) -> int:
        self._old = _memory(self._live)[self._index]
        changed = self._old ^ self._new
        return int(np.count_nonzero(changed.view(f"<u{self._width}")))

    def write(self) -> None:
        self._set(_memory(self._live), self._index, self._new)

    def put_back(self) -> None:
        self._set(_memory(self._live), self._index, self._old)


class _DeviceSpot:
    on_device = True

    def __init__(self, live: torch.Tensor, index: Array, new: Array, *, width: int) -> None:
        self._live = live
        self._index = torch.from_numpy(index.astype(np.int64)).to(live.device)
        self._new = torch.from_numpy(new).to(live.device)
        self._old = self._new[:0]
        self._width = width
        self.units = len(index)
        self.size_bytes = new.nbytes

    def __repr__(self) -> str:
        return f"<_DeviceSpot {self.units} units>"

    def keep(self) -> int:
        self._old = _checked(self._live).index_select(0, self._index)
        changed = (self._old ^ self._new).view(_INTEGERS[self._width])
        return int(changed.count_nonzero())

    def write(self) -> None:
        _checked(self._live).index_copy_(0, self._index, self._new)

    def put_back(self) -> None:
        _checked(self._live).index_copy_(0, self._index, self._old)


def _set(live: Array, index: Array, values: Array) -> None:
    live[index] = values


def _memory(live: torch.Tensor) -> Array:
    memory: Array = _checked(live).numpy()
    return memory


def _checked(live: torch.Tensor) -> torch.Tensor:
    end = (live.storage_offset() + live.numel()) * live.element_size()
    if live.untyped_storage().nbytes() < end:
        raise RuntimeError(
            "the live weights have no memory now; wake them, then send a full update"
        )
    return live


def _groups(spots: Sequence[Spot], units: int) -> Iterator[list[Spot]]:
    """``spots`` in order, at least ``units`` together, but for the last of them."""
    group: list[Spot] = []
    for spot in spots:
        group.append(spot)
        if sum(one.units for one in group) >= units:
            yield group
            group = []
    if group:
        yield group


def _jobs(spots: Sequence[Spot], of: Callable[[Spot], Job]) -> list[Job]:
    """One job for all that is on a device: what is alone runs on the thread that asks for it."""
    groups = list(_groups([spot for spot in spots if not spot.on_device], _TOGETHER))
    device = [spot for spot in spots if spot.on_device]
    return [partial(_all, [of(spot) for spot in group]) for group in (*groups, device) if group]


def _all(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job()
