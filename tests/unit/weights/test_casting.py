"""Which dtypes may become which, and which tensors are plain."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn

from hotswap.weights.casting import can_cast, why_not_plain

FLOATS = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
OTHERS = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("live", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_every_float_becomes_every_float(source: torch.dtype, live: torch.dtype) -> None:
    assert can_cast(source, live)


@pytest.mark.parametrize("other", OTHERS)
def test_nothing_else_becomes_anything_else(other: torch.dtype) -> None:
    assert can_cast(other, other)
    assert not any(can_cast(other, to) for to in [*FLOATS, *OTHERS] if to != other)
    assert not any(can_cast(source, other) for source in FLOATS)


def test_a_packed_float_is_never_cast() -> None:
    assert can_cast(torch.float4_e2m1fn_x2, torch.float4_e2m1fn_x2)
    assert not can_cast(torch.float4_e2m1fn_x2, torch.float32)


class _PlainSubclass(nn.Parameter):
    """As vLLM's parameters: extra attributes, ordinary memory."""


def _refuse(*_args: object) -> object:
    raise NotImplementedError


# As DTensor and torchao's tensors: operators are intercepted.
_Intercepting = type("_Intercepting", (torch.Tensor,), {"__torch_dispatch__": classmethod(_refuse)})


def _quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch: deprecated
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


def test_plain_tensors_are_plain() -> None:
    assert why_not_plain(torch.ones(2)) is None
    assert why_not_plain(nn.Parameter(torch.ones(2))) is None
    assert why_not_plain(_PlainSubclass(torch.ones(2))) is None
    assert why_not_plain(torch.ones(4, 4).t()[1:, ::2]) is None


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.ones(2, device="meta"), "meta"),
        (torch.eye(2).to_sparse(), "sparse_coo"),
        (_quantised(), "quantised.*qint8"),
        (torch.ones(2).as_subclass(_Intercepting), "_Intercepting"),
    ],
)
def test_other_tensors_get_a_reason(tensor: torch.Tensor, reason: str) -> None:
    found = why_not_plain(tensor)
    assert found is not None
    assert re.search(reason, found)
