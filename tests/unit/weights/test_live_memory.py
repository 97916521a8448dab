"""Memory of live tensors that is let go and taken again."""

from __future__ import annotations

import errno
import mmap
import sys
from pathlib import Path

import pytest
import torch

from hotswap.errors import IllegalCommand, UpdateRejected
from hotswap.testing.tiny_modules import TinyModel, tiny_state, tiny_target
from hotswap.types import Manifest, Scope
from hotswap.weights import live_memory
from hotswap.weights.casting import why_not_plain
from hotswap.weights.live_memory import LiveMemory
from hotswap.weights.pieces import spec_of
from hotswap.weights.target import WeightTarget

PAGE = mmap.PAGESIZE


def fill(target: WeightTarget, state: dict[str, torch.Tensor]) -> None:
    plan = target.plan(Manifest.of(spec_of(n, t) for n, t in state.items()), Scope.FULL)
    target.write(plan, list(state.items()))
    target.finish()


def resident_bytes(tensor: torch.Tensor) -> int:
    """How much of a tensor's whole pages is in memory."""
    start = -(-tensor.data_ptr() // PAGE)
    stop = (tensor.data_ptr() + tensor.nbytes) // PAGE
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pages:
        pages.seek(start * 8)
        entries = pages.read((stop - start) * 8)
    # The highest bit of eight bytes: present.
    return PAGE * sum(byte >> 7 for byte in entries[7::8])


def large(value: float) -> torch.Tensor:
    """Of a few pages, wherever they begin."""
    return torch.full((16 * PAGE // 4,), value)


@pytest.mark.parametrize("tied", [False, True])
def test_a_full_update_brings_back_what_one_fills_and_the_rest_stays(tied: bool) -> None:
    model = TinyModel(tied=tied, padding=2)
    target = tiny_target(model)
    state = tiny_state(3, tied=tied)
    fill(target, state)
    names = target.manifest().names
    wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    kept = model.get_buffer("inv_freq").clone()
    sizes = {tensor.data_ptr(): tensor.nbytes for tensor in model.state_dict().values()}

    assert target.release() == sum(sizes.values())
    assert target.release() == 0
    assert target.manifest().names == names
    assert target.restore() == sum(sizes.values())
    assert target.restore() == 0

    fill(target, state)
    live = model.state_dict()
    assert {name: live[name].tolist() for name in live} == {
        name: tensor.tolist() for name, tensor in wanted.items()
    }
    assert torch.equal(model.get_buffer("inv_freq"), kept)
    assert model.layer.derived == model.layer.scale + 1
    if tied:
        assert model.head.weight is model.embed.weight


def test_nobody_reads_writes_or_plans_what_is_released() -> None:
    target = tiny_target(TinyModel())
    state = tiny_state(1)
    manifest = Manifest.of(spec_of(n, t) for n, t in state.items())
    plan = target.plan(manifest, Scope.FULL)
    target.release()

    with pytest.raises(UpdateRejected, match='wake the tag "weights" first'):
        target.plan(manifest, Scope.FULL)
    for touch in (
        target.checksums,
        lambda: target.read("head.weight", 2),
        lambda: target.write(plan, list(state.items())),
        lambda: target.reset(()),
    ):
        with pytest.raises(RuntimeError, match="released"):
            touch()
    target.restore()
    # A plan from before is as good as one from after.
    target.write(plan, list(state.items()))
    assert torch.equal(target.read("head.weight", 2), state["head.weight"][:2])


def test_pages_go_and_come_at_their_addresses() -> None:
    tensor, memory = large(1.0), LiveMemory()
    address, whole = tensor.data_ptr(), resident_bytes(tensor)
    assert whole >= 15 * PAGE

    assert memory.release([tensor], kept=[]) == tensor.nbytes
    assert resident_bytes(tensor) == 0
    # Who looks all the same sees no weights, and ends no process.
    assert not torch.any(tensor[PAGE // 4 : -PAGE // 4])
    assert memory.restore() == tensor.nbytes
    assert resident_bytes(tensor) == whole
    assert tensor.data_ptr() == address


def test_memory_that_something_else_lies_in_stays() -> None:
    whole = large(1.0)
    memory = LiveMemory()

    assert memory.release([whole[:5]], kept=[whole[5:]]) == 0
    assert torch.all(whole == 1.0)
    assert memory.release([whole[:5], whole[5:]], kept=[]) == whole.nbytes
    assert resident_bytes(whole) == 0
    assert repr(memory) == f"<LiveMemory 1 storages, {whole.nbytes} bytes released>"


def test_the_storage_of_a_device_has_no_bytes_for_a_while() -> None:
    # Of no device that is here: it has sizes, and no memory at all.
    tensor, memory = torch.empty(4, device="meta"), LiveMemory()
    assert memory.release([tensor], kept=[]) == 16
    assert tensor.untyped_storage().nbytes() == 0
    assert why_not_plain(torch.nn.Parameter(tensor)) is not None
    assert memory.restore() == 16
    assert tensor.untyped_storage().nbytes() == 16


def test_a_tensor_whose_storage_has_no_bytes_is_not_plain() -> None:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    reason = why_not_plain(tensor)
    tensor.untyped_storage().resize_(16)

    assert reason == "released: its memory is given back"
    assert why_not_plain(tensor) is None
    assert why_not_plain(torch.ones(0)) is None


@pytest.mark.parametrize("failing", [errno.ENOMEM, errno.EINVAL])
def test_memory_that_is_not_there_leaves_all_released(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, memory = [large(1.0), large(2.0)], LiveMemory()
    memory.release(tensors, kept=[])
    advise, calls = live_memory._advise, list[int]()

    def refuse(storage: torch.UntypedStorage, advice: int) -> None:
        calls.append(advice)
        if len(calls) == 2:
            raise OSError(failing, "refused")
        advise(storage, advice)

    monkeypatch.setattr(live_memory, "_advise", refuse)
    if failing == errno.EINVAL:
        # A kernel that knows no such advice: pages come when they are written.
        assert memory.restore() == sum(tensor.nbytes for tensor in tensors)
        return
    with pytest.raises(MemoryError, match="wake them again"):
        memory.restore()
    assert [resident_bytes(tensor) for tensor in tensors] == [0, 0]
    assert memory.restore() == sum(tensor.nbytes for tensor in tensors)


def test_a_system_that_takes_nothing_back_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    tensor = large(1.0)
    with pytest.raises(IllegalCommand, match="darwin takes no host memory back"):
        LiveMemory().release([tensor], kept=[])
    assert torch.all(tensor == 1.0)
