"""Values that leave no bit of a dtype unused: what one cast changes, it does not give back."""

from __future__ import annotations

import math

import torch

__all__ = ["any_values"]


def any_values(
    shape: tuple[int, ...], dtype: torch.dtype, *, draw: torch.Generator
) -> torch.Tensor:
    """A tensor of normal numbers, each sign, exponent and fraction as likely as any other.

    No zeros, subnormal numbers, infinities and NaNs of floats: these have tests of their own.
    Integers are of the whole range.
    """
    if dtype.is_complex:
        parts = any_values((*shape, 2), dtype.to_real(), draw=draw)
        return torch.view_as_complex(parts)
    if dtype.is_floating_point:
        return _normal(shape, dtype, draw)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=draw).to(dtype)
    count = math.prod(shape) * dtype.itemsize
    return _bytes(count, draw).view(dtype).reshape(shape)


def _normal(shape: tuple[int, ...], dtype: torch.dtype, draw: torch.Generator) -> torch.Tensor:
    finfo = torch.finfo(dtype)
    # Half of the largest and twice the smallest: no rounding leads out of the normal numbers.
    low, high = math.log2(finfo.smallest_normal) + 1, math.log2(finfo.max) - 1
    exponent = torch.empty(shape, dtype=torch.float64).uniform_(low, high, generator=draw)
    sign = torch.randint(0, 2, shape, generator=draw) * 2 - 1
    return (sign * torch.exp2(exponent)).to(dtype)


def _bytes(count: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, (count,), generator=draw).to(torch.uint8)
