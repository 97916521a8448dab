"""Words of a checkpoint in live memory of every kind: what a load of everything would do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hotswap.sparse import TensorPatch, scatter
from hotswap.sparse.live import NotExact, layout_of, live_changes
from hotswap.sparse.scatter import LiveChanges, spots_of
from hotswap.stream.words import different_words, whole_words
from hotswap.types import Manifest, Scope
from hotswap.weights.pieces import spec_of
from hotswap.weights.plan import TargetPlan
from hotswap.weights.target import WeightTarget


def patch_of(old: torch.Tensor, new: torch.Tensor) -> TensorPatch:
    before, after = (
        np.frombuffer(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes(), np.uint8)
        for tensor in (old, new)
    )
    words = different_words(before, after)
    room = np.zeros(whole_words(len(after)), np.uint8)
    room[: len(after)] = after
    values = room.view("<u8")[words]
    return TensorPatch(words=words.astype(np.uint32), values=values, length_bytes=len(after))


def changed(tensor: torch.Tensor, every: int = 3) -> torch.Tensor:
    new = tensor.clone()
    new.view(-1)[::every] = (new.view(-1)[::every] * -2 + 1).to(new.dtype)
    return new


def run(jobs: list[Callable[[], None]]) -> None:
    for job in jobs:
        job()


class One(nn.Module):
    """A single parameter, or buffer for what can be none."""

    def __init__(self, live: torch.Tensor) -> None:
        super().__init__()
        if live.is_floating_point() or live.is_complex():
            self.weight = nn.Parameter(live)
        else:
            self.register_buffer("weight", live)


def target_of(live: torch.Tensor) -> WeightTarget:
    return WeightTarget(One(live))


def plan_of(target: WeightTarget, state: Mapping[str, torch.Tensor]) -> TargetPlan:
    return target.plan(Manifest.of(spec_of(*item) for item in state.items()), Scope.FULL)


def _strided(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Every other column of something wider, and its rows backwards in memory order."""
    wide = torch.zeros(shape[1], 2 * shape[0], dtype=dtype)
    return wide[:, ::2].t()


LIVE: Mapping[str, Callable[[], torch.Tensor]] = {
    "words": lambda: torch.zeros(6, 8),
    "odd": lambda: torch.zeros(7, 5, dtype=torch.bfloat16),
    "scalar": lambda: torch.zeros(()),
    "one": lambda: torch.zeros(1, dtype=torch.float16),
    "bytes": lambda: torch.zeros(33, dtype=torch.int8),
    "bools": lambda: torch.zeros(9, dtype=torch.bool),
    "long": lambda: torch.zeros(5, dtype=torch.int64),
    "double": lambda: torch.zeros(3, 3, dtype=torch.float64),
    "complex": lambda: torch.zeros(4, 3, dtype=torch.complex64),
    "float8": lambda: torch.zeros(5, 5, dtype=torch.float8_e4m3fn),
    "strided": lambda: _strided(5, 4),
    "strided and narrow": lambda: _strided(4, 6, dtype=torch.bfloat16),
    "inside another": lambda: torch.zeros(50)[3:39].view(6, 6),
}


@pytest.mark.parametrize("name", LIVE)
def test_every_kind_of_memory(name: str) -> None:
    live = LIVE[name]()
    draw = torch.Generator().manual_seed(4)
    old = torch.randint(0, 2, live.shape, generator=draw).to(live.dtype)
    new = changed(old.to(torch.float32) if live.dtype.itemsize == 1 else old).to(live.dtype)
    target = target_of(live)
    plan = plan_of(target, {"weight": old})
    target.write(plan, [("weight", old)])
    changes = live_changes(plan, {"weight": patch_of(old, new)})
    before = target.checksums()
    run(changes.looks())
    assert target.checksums() == before
    target.patch(changes.writes())
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[live.dtype.itemsize]
    written = live.contiguous().view(-1).view(width)
    assert torch.equal(written, new.reshape(-1).view(width))
    moved = int((old.reshape(-1).view(width) != new.reshape(-1).view(width)).sum())
    assert (changes.elements, changes.tensors) == (moved, 1)
    target.patch(changes.undoing())
    assert target.checksums() == before


@pytest.mark.parametrize("cut", [(slice(2, 5),), (slice(None), slice(1, 6, 2)), (slice(4, 4),)])
@pytest.mark.parametrize("live_dtype", [torch.float32, torch.bfloat16])
def test_a_shard_gets_what_is_its_own(cut: tuple[slice, ...], live_dtype: torch.dtype) -> None:
    """A rank of several keeps a part of each tensor of the checkpoint."""
    old = torch.randn(6, 7, generator=torch.Generator().manual_seed(1))
    new = changed(old)
    target = target_of(old[cut].to(live_dtype).contiguous())
    whole = plan_of(target, {"weight": old[cut]})
    slot = whole.slots["weight"]
    spec = replace(slot.spec, shape=(6, 7))
    plan = replace(
        whole,
        slots={"weight": replace(slot, spec=spec, source=cut)},
        specs={"weight": spec},
        sources={"weight": spec_of("weight", old)},
    )
    changes = live_changes(plan, {"weight": patch_of(old, new)})
    run(changes.looks())
    target.patch(changes.writes())
    target.patch(changes.writes())
    assert torch.equal(target.module.get_parameter("weight"), new[cut].to(live_dtype))
    target.patch(changes.undoing())
    assert torch.equal(target.module.get_parameter("weight"), old[cut].to(live_dtype))


def test_what_is_not_certain_is_refused() -> None:
    old = torch.zeros(8)
    target = target_of(torch.zeros(8))
    plan = plan_of(target, {"weight": old})
    patch = patch_of(old, changed(old))
    with pytest.raises(NotExact, match="other has changed and has no place"):
        live_changes(plan, {"other": patch})
    with pytest.raises(NotExact, match="its patch is of 32 bytes"):
        live_changes(
            replace(plan, sources={"weight": spec_of("weight", torch.zeros(9))}), {"weight": patch}
        )
    wide = torch.zeros(4, dtype=torch.complex128)
    with pytest.raises(NotExact):
        live_changes(
            plan_of(target_of(wide), {"weight": wide}), {"weight": patch_of(wide, wide + 1)}
        )
    assert live_changes(replace(plan, skipped=("gone",)), {"gone": patch}).tensors == 0


def test_memory_that_was_let_go_is_not_touched() -> None:
    old = torch.zeros(64)
    target = target_of(torch.zeros(64))
    plan = plan_of(target, {"weight": old})
    changes = live_changes(plan, {"weight": patch_of(old, changed(old))})
    target.module.get_parameter("weight").untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="have no memory now; wake them"):
        run(changes.looks())


def test_the_layout_tells_of_what_torch_sees() -> None:
    target = target_of(torch.zeros(4))
    plan = plan_of(target, {"weight": torch.zeros(4)})
    before = layout_of(plan)
    assert layout_of(plan) == before
    with torch.no_grad():
        target.module.get_parameter("weight").add_(1)
    assert layout_of(plan) != before
    with torch.inference_mode():
        made_here = target_of(torch.zeros(4))
    assert layout_of(plan_of(made_here, {"weight": torch.zeros(4)}))


def _many(live: torch.Tensor, *, native: bool, monkeypatch: pytest.MonkeyPatch) -> LiveChanges:
    monkeypatch.setattr(scatter, "has_native", lambda: native)
    monkeypatch.setattr(scatter, "compiled", lambda kernel: kernel)
    monkeypatch.setattr(scatter, "_PIECE", 10)
    monkeypatch.setattr(scatter, "_TOGETHER", 25)
    index = np.arange(0, 90, 2, dtype=np.uint32)
    new = np.full(45, 7, np.int64)
    return LiveChanges(list(spots_of(live, index, new, width=8)), tensors=1)


@pytest.mark.parametrize("native", [False, True])
def test_many_are_cut_into_pieces_and_few_put_together(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = torch.arange(90)
    changes = _many(live, native=native, monkeypatch=monkeypatch)
    assert (len(changes.looks()), len(changes.writes())) == (3, 2)
    assert changes.size_bytes == 45 * 8
    assert repr(changes) == "<LiveChanges 1 tensors, 360 bytes>"
    run(changes.looks())
    run(changes.writes())
    assert changes.elements == 45
    expected = torch.arange(90)
    expected[::2] = 7
    assert torch.equal(live, expected)
    run(changes.undoing())
    assert torch.equal(live, torch.arange(90))


def test_on_a_device_torch_does_the_same() -> None:
    """Its operations run on the CPU as well."""
    live = torch.arange(40, dtype=torch.int64)
    index, new = np.arange(0, 40, 4, dtype=np.uint32), np.full(10, 2**40 + 1, np.int64)
    spot = scatter._DeviceSpot(live, index, new, width=2)
    assert (spot.units, spot.size_bytes, repr(spot)) == (10, 80, "<_DeviceSpot 10 units>")
    moved = spot.keep()
    words = (np.arange(0, 40, 4) ^ new).view("<u2")
    assert moved == np.count_nonzero(words)
    spot.write()
    assert live[::4].tolist() == [2**40 + 1] * 10
    spot.put_back()
    assert torch.equal(live, torch.arange(40))
    # All of it is one job, for the thread that runs the model.
    host = list(spots_of(torch.arange(8), np.arange(2), np.zeros(2, np.int64), width=8))
    changes = LiveChanges([spot, *host, spot], tensors=2)
    assert (len(changes.writes()), len(LiveChanges([spot, spot], tensors=2).writes())) == (2, 1)
