"""Overwrite a live tensor with values that tell nothing of what was there."""

from __future__ import annotations

import torch

__all__ = ["fill_with_noise"]

_DRAWN = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    }
)


def fill_with_noise(tensor: torch.Tensor) -> None:
    """Fill ``tensor`` in place: normal noise, or every bit turned where none can be drawn.

    The generator is its own: sampling with a seed draws what it would have drawn.
    """
    with torch.inference_mode():
        if tensor.dtype in _DRAWN:
            generator = torch.Generator(device=tensor.device)
            generator.seed()
            tensor.normal_(generator=generator)
        elif tensor.dtype is torch.bool:
            tensor.logical_not_()
        elif tensor.dtype.is_floating_point:
            tensor.view(torch.uint8).bitwise_not_()
        else:
            tensor.bitwise_not_()
