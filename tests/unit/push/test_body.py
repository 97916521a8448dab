"""Tensors as the bytes of a safetensors file."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load

from hotswap.push import SafetensorsBody, SharedTensors
from hotswap.testing.module_engine import HeldTensor
from hotswap.types import Payload, TensorSpec

NAMED: dict[str, Payload] = {
    "bf16": torch.arange(6.0).to(torch.bfloat16).view(2, 3),
    "odd": torch.arange(5, dtype=torch.uint8),
    "strided": torch.arange(12.0).view(3, 4).t()[1:, ::2],
    "scalar": torch.tensor(3, dtype=torch.int64),
    "none": torch.empty(0, 4),
    "read": HeldTensor("elsewhere", torch.full((4,), 2.0)),
}


def wanted() -> dict[str, torch.Tensor]:
    return {
        name: (one if isinstance(one, torch.Tensor) else torch.full((4,), 2.0)).contiguous()
        for name, one in NAMED.items()
    }


def test_a_body_is_what_safetensors_reads() -> None:
    body = SafetensorsBody(NAMED.items())
    for _ in range(2):
        whole = b"".join(body)
        assert len(whole) == len(body)
        found = load(whole)
        assert sorted(found) == sorted(NAMED)
        for name, tensor in wanted().items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor)
    assert repr(body) == f"<SafetensorsBody 6 tensors, {len(body)} bytes>"


def test_large_tensors_go_in_pieces_of_their_own_memory() -> None:
    tensor = torch.arange(3 * 2**18, dtype=torch.float32)
    pieces = list(SafetensorsBody([("a", tensor)]))
    assert [len(piece) for piece in pieces[1:]] == [2**20] * 3
    tensor[-1] = -1.0
    assert torch.frombuffer(bytearray(pieces[-1]), dtype=torch.float32)[-1] == -1.0


def test_what_no_file_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        SafetensorsBody([("a", torch.ones(1)), ("a", torch.ones(1))])
    with pytest.raises(ValueError, match="no such dtype"):
        SafetensorsBody([("a", torch.ones(1, dtype=torch.complex128))])


def test_shared_tensors_hold_a_copy_and_describe_it() -> None:
    with SharedTensors.of(NAMED.items()) as shared:
        for name, tensor in wanted().items():
            assert torch.equal(shared.tensors[name], tensor)
        described = shared.description()
        assert [one.name for one in described.tensors] == list(NAMED)
        assert [one.offset % 64 for one in described.tensors] == [0] * len(NAMED)
        assert described.push().__repr__() == "<SharedPush 6 tensors>"
        assert repr(shared).startswith("<SharedTensors 6 tensors")
    assert shared.tensors == {}


def test_shared_tensors_refuse_what_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TensorSpec(name="a", dtype=torch.float32, shape=(2,))
    with pytest.raises(ValueError, match="twice"):
        SharedTensors([spec, spec])
    with pytest.raises(OSError, match="smaller pieces"):
        SharedTensors([TensorSpec(name="a", dtype=torch.uint8, shape=(2**50,))])
