"""Linear layers that start empty, and a bfloat16 product for CPUs without bfloat16.

Without AVX-512 torch multiplies bfloat16 matrices about five times slower than
float32 ones (a few vectors excepted). There activations are float32, and a weight is
widened a block at a time into a small float32 scratch. The live bfloat16 parameter
stays the only copy of the weight.
"""

from __future__ import annotations

import threading

import torch
from torch import nn
from torch.nn import functional

__all__ = ["Linear", "empty_parameter", "is_slow", "linear"]

_SCRATCH_NUMEL = 2**20
# As measured: up to so many tokens torch's own bfloat16 product is no slower, and up to
# so many the float32 one is faster with the tokens as rows.
_NATIVE_TOKENS = 2
_FEW_TOKENS = 8
_local = threading.local()


def empty_parameter(*shape: int, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """A parameter of zeros that wants no gradient; memory comes when it is written."""
    return nn.Parameter(torch.zeros(shape, dtype=dtype, device=device), requires_grad=False)


class Linear(nn.Module):
    """``y = x W' + b`` with ``weight`` ``[rows x columns]``; not initialised."""

    def __init__(
        self, columns: int, rows: int, *, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.weight: nn.Parameter = empty_parameter(rows, columns, dtype=dtype, device=device)
        self.bias: nn.Parameter | None = (
            empty_parameter(rows, dtype=dtype, device=device) if bias else None
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """``[tokens x columns]`` to ``[tokens x rows]``."""
        return linear(inputs, self.weight, self.bias)


def linear(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``inputs`` ``[tokens x columns]`` times ``weight`` ``[rows x columns]`` transposed.

    In the dtype of ``inputs``: that of the weight, or float32.
    """
    if inputs.dtype == weight.dtype:
        return functional.linear(inputs, weight, bias)
    if inputs.shape[0] <= _NATIVE_TOKENS:
        return functional.linear(inputs.to(weight.dtype), weight, bias).to(inputs.dtype)
    return _widened(inputs, weight, bias)


def is_slow(values: torch.Tensor) -> bool:
    """Whether products in the dtype of ``values`` are better done in float32, where they live."""
    return (
        values.device.type == "cpu"
        and values.dtype in (torch.bfloat16, torch.float16)
        and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")
    )


def _widened(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    (rows, columns), tokens = weight.shape, inputs.shape[0]
    step = min(rows, max(1, _SCRATCH_NUMEL // columns))
    scratch = _scratch(step * columns)
    # Many tokens are columns of the product: threads then share the rows of the weight.
    has_few = tokens <= _FEW_TOKENS
    out = torch.empty((tokens, rows) if has_few else (rows, tokens))
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        block = scratch[: (stop - start) * columns].view(stop - start, columns)
        block.copy_(weight[start:stop])
        if has_few:
            torch.mm(inputs, block.t(), out=out[:, start:stop])
        else:
            torch.mm(block, inputs.t(), out=out[start:stop])
    product = out if has_few else out.t().contiguous()
    return product if bias is None else product.add_(bias)


def _scratch(numel: int) -> torch.Tensor:
    """Float32 memory of this thread, kept between calls: fresh pages cost more than the sums."""
    kept: torch.Tensor | None = getattr(_local, "scratch", None)
    if kept is None or kept.numel() < numel:
        # A tensor made in inference mode could not be written outside of it.
        with torch.inference_mode(False):
            kept = torch.empty(max(numel, _SCRATCH_NUMEL), dtype=torch.float32)
        _local.scratch = kept
    return kept
