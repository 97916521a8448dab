"""Memory that goes back to the system at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from hotswap.types import TensorSpec
from hotswap.weights.memory import Memory

MIB = 2**20


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _spec(size_bytes: int) -> TensorSpec:
    return TensorSpec(name="x", dtype=torch.uint8, shape=(size_bytes,))


def test_tensors_share_the_memory_and_keep_their_dtype() -> None:
    with Memory(256) as memory:
        one = memory.tensor(64, TensorSpec(name="a", dtype=torch.bfloat16, shape=(2, 3)))
        one.copy_(torch.arange(6).view(2, 3))
        again = memory.tensor(64, TensorSpec(name="b", dtype=torch.bfloat16, shape=(6,)))
        assert again.tolist() == [0, 1, 2, 3, 4, 5]
        assert one.is_contiguous()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_tensors_have_their_shape(shape: tuple[int, ...]) -> None:
    with Memory(8) as memory:
        assert (
            memory.tensor(0, TensorSpec(name="a", dtype=torch.float64, shape=shape)).shape == shape
        )


def test_nothing_outside_is_handed_out() -> None:
    memory = Memory(16)
    with pytest.raises(ValueError, match="outside"):
        memory.tensor(8, _spec(9))
    memory.close()
    with pytest.raises(ValueError, match=r"outside <Memory 16 bytes closed>"):
        memory.tensor(0, _spec(1))


def test_untouched_memory_costs_nothing_and_touched_memory_goes_back() -> None:
    before = _resident_bytes()
    memory = Memory(256 * MIB)
    assert _resident_bytes() - before < 8 * MIB
    memory.tensor(0, _spec(64 * MIB)).fill_(1)
    assert _resident_bytes() - before > 56 * MIB
    memory.close()
    memory.close()
    assert _resident_bytes() - before < 8 * MIB


def test_memory_goes_back_even_while_a_tensor_points_into_it() -> None:
    memory = Memory(64 * MIB)
    held = memory.tensor(0, _spec(64 * MIB)).fill_(7)
    before = _resident_bytes()
    memory.close()
    assert before - _resident_bytes() > 56 * MIB
    assert held[:3].tolist() == [0, 0, 0]


def test_more_than_the_system_has_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match=re.escape(str(2**60))):
        Memory(2**60)
