"""Which tensors can be written in place, and which dtype may become which.

Rule: floats become other floats exactly as ``Tensor.to`` rounds them; every other
dtype must match. What hotswap cannot write faithfully gets a reason, never a guess.
"""

from __future__ import annotations

from functools import cache

import torch

__all__ = ["can_cast", "why_not_plain"]


@cache
def can_cast(source: torch.dtype, live: torch.dtype) -> bool:
    """Whether ``live.copy_(source)`` is a documented cast (or no cast at all)."""
    if source == live:
        return _copies(source, live)
    both_float = source.is_floating_point and live.is_floating_point
    return both_float and _copies(source, live)


def _copies(source: torch.dtype, live: torch.dtype) -> bool:
    # Packed and sub-byte dtypes (float4) claim to be floats and have no copy kernel.
    try:
        torch.empty(1, dtype=live).copy_(torch.empty(1, dtype=source))
    except (NotImplementedError, RuntimeError):
        return False
    return True


def why_not_plain(tensor: torch.Tensor) -> str | None:
    """Why the bytes of ``tensor`` are not plain strided elements; None when they are."""
    # Parameter subclasses (vLLM has many) are plain; only a subclass that
    # intercepts operators (DTensor, torchao) hides its bytes.
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"a {type(tensor).__name__}, not a plain tensor"
    if tensor.layout is not torch.strided:
        return f"sparse ({str(tensor.layout).removeprefix('torch.')})"
    if tensor.is_meta:
        return "on the meta device, without memory"
    if tensor.is_quantized:
        return f"quantised ({str(tensor.dtype).removeprefix('torch.')})"
    if tensor.numel() and not tensor.untyped_storage().nbytes():
        # Whoever looked at its bytes would end the process.
        return "released: its memory is given back"
    return None
