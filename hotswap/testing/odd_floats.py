"""Floats that arithmetic does not keep: zeros with a sign, NaNs with a payload, subnormals.

Made of their bits, so that nothing computes with them on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch

__all__ = ["ODD_FLOATS", "nans", "subnormals", "zeros"]

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def zeros(dtype: torch.dtype) -> torch.Tensor:
    """``0.0`` and ``-0.0``, several times, ``[8]``."""
    return _of_bits([0, _sign(dtype)] * 4, dtype)


def nans(dtype: torch.dtype) -> torch.Tensor:
    """Every kind: quiet and signalling, of both signs, with several payloads; ``[n]``."""
    mantissa = _mantissa_bits(dtype)
    infinity = _sign(dtype) - (1 << mantissa)
    payloads = {1, 2, 1 << (mantissa - 1), (1 << (mantissa - 1)) + 1, (1 << mantissa) - 1}
    bits = [sign + infinity + one for one in sorted(payloads) for sign in (0, _sign(dtype))]
    found = _of_bits(bits, dtype)
    # Formats with few bits have few NaNs, and numbers where others have NaNs.
    return found[found.float().isnan()]


def subnormals(dtype: torch.dtype) -> torch.Tensor:
    """The smallest ones and the largest one, of both signs; ``[n]``."""
    normal = 1 << _mantissa_bits(dtype)
    numbers = sorted({1, 2 % normal, normal // 2, normal - 1} - {0})
    return _of_bits([sign + one for one in numbers for sign in (0, _sign(dtype))], dtype)


ODD_FLOATS: Mapping[str, Callable[[torch.dtype], torch.Tensor]] = {
    "signed zeros": zeros,
    "NaNs": nans,
    "subnormal numbers": subnormals,
}
"""What they are called -> what makes some of a dtype."""


def _sign(dtype: torch.dtype) -> int:
    return 1 << (8 * dtype.itemsize - 1)


def _mantissa_bits(dtype: torch.dtype) -> int:
    return round(-math.log2(torch.finfo(dtype).eps))


def _of_bits(bits: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
    sign = _sign(dtype)
    signed = [one - 2 * sign if one >= sign else one for one in bits]
    return torch.tensor(signed, dtype=_INTEGERS[dtype.itemsize]).view(dtype)
