"""Rotary embedding: frequencies of every scaling type, and the rotation itself.

Frequencies are float32 whatever the model's dtype, as transformers has them. They
come from the configuration alone: non-persistent, never loaded, never recomputed.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from hotswap.engine.rope_parameters import RopeParameters, RopeType

__all__ = ["RotaryEmbedding", "Rotation", "inverse_frequencies", "rotate"]

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cos and sin of every token, the same for every layer."""


def inverse_frequencies(rope: RopeParameters, head_dim: int) -> torch.Tensor:
    """``[head_dim / 2]`` float32 on the CPU: the frequencies of a text of ordinary length."""
    match rope.rope_type:
        case RopeType.LINEAR:
            return _plain(rope.rope_theta, head_dim) / rope.factor
        case RopeType.LLAMA3:
            return _llama3(rope, head_dim)
        case RopeType.YARN:
            return _yarn(rope, head_dim)
        case RopeType.LONGROPE:
            return _stretched(rope, head_dim, rope.short_factor)
        case RopeType.DEFAULT | RopeType.DYNAMIC:
            return _plain(rope.rope_theta, head_dim)


def _exponents(head_dim: int) -> torch.Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim


def _plain(theta: float, head_dim: int) -> torch.Tensor:
    return 1.0 / (theta ** _exponents(head_dim))


def _stretched(rope: RopeParameters, head_dim: int, factors: tuple[float, ...]) -> torch.Tensor:
    return 1.0 / (torch.tensor(factors) * rope.rope_theta ** _exponents(head_dim))


def _llama3(rope: RopeParameters, head_dim: int) -> torch.Tensor:
    """Long waves are slowed by the factor, short ones kept, those between blended."""
    plain = _plain(rope.rope_theta, head_dim)
    # How often each wave fits into the context that the model was trained with.
    turns = rope.original_positions * plain / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = ((turns - rope.low_freq_factor) / span).clamp(0.0, 1.0)
    return (1 - keep) * plain / rope.factor + keep * plain


def _yarn(rope: RopeParameters, head_dim: int) -> torch.Tensor:
    """As llama3, but blended over the index of the dimension, not over the wavelength."""
    plain = _plain(rope.rope_theta, head_dim)
    low, high = (_yarn_bound(rope, head_dim, turns) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    # The same hair's breadth as elsewhere keeps the ramp from dividing by zero.
    width = high - low if high != low else 0.001
    index = torch.arange(head_dim // 2, dtype=torch.float32)
    slow = ((index - low) / width).clamp(0.0, 1.0)
    return plain / rope.factor * slow + plain * (1 - slow)


def _yarn_bound(rope: RopeParameters, head_dim: int, turns: float) -> float:
    """The (fractional) dimension whose wave turns ``turns`` times in the trained context."""
    wavelength = rope.original_positions / (turns * 2 * math.pi)
    return head_dim * math.log(wavelength) / (2 * math.log(rope.rope_theta))


class RotaryEmbedding(nn.Module):
    """Gives cos and sin for positions; the same for every layer of one forward pass."""

    inv_freq: torch.Tensor
    long_inv_freq: torch.Tensor

    def __init__(self, rope: RopeParameters, head_dim: int, *, device: torch.device) -> None:
        super().__init__()
        self._rope = rope
        self._head_dim = head_dim
        self._register("inv_freq", inverse_frequencies(rope, head_dim), device)
        if rope.rope_type is RopeType.LONGROPE:
            self._register("long_inv_freq", _stretched(rope, head_dim, rope.long_factor), device)

    def _register(self, name: str, values: torch.Tensor, device: torch.device) -> None:
        if not values.isfinite().all():
            raise ValueError(
                f"the rope parameters give frequencies that are not finite ({self._rope}); wanted "
                "a rope_theta and factors that a float32 can hold"
            )
        self.register_buffer(name, values.to(device), persistent=False)

    def forward(
        self, positions: torch.Tensor, lengths: torch.Tensor, *, dtype: torch.dtype
    ) -> Rotation:
        """Cos and sin, each ``[tokens x 1 x head_dim]`` in ``dtype``, for :func:`rotate`.

        ``positions`` and ``lengths`` are ``[tokens]`` int64. ``lengths`` is the
        length of the text when the token was first seen; only dynamic and long
        rope read it.
        """
        angles = positions[:, None].float() * self._frequencies(lengths)
        scale = self._rope.attention_factor
        cos, sin = angles.cos() * scale, angles.sin() * scale
        return (
            torch.cat((cos, cos), dim=-1)[:, None].to(dtype),
            torch.cat((-sin, sin), dim=-1)[:, None].to(dtype),
        )

    def _frequencies(self, lengths: torch.Tensor) -> torch.Tensor:
        """``[1 or tokens x head_dim / 2]`` float32."""
        if self._rope.rope_type is RopeType.LONGROPE:
            is_long = lengths[:, None] > self._rope.original_positions
            return torch.where(is_long, self.long_inv_freq, self.inv_freq)
        if self._rope.rope_type is RopeType.DYNAMIC:
            return self._dynamic(lengths)
        return self.inv_freq[None]

    def _dynamic(self, lengths: torch.Tensor) -> torch.Tensor:
        rope, dim = self._rope, self._head_dim
        seen = lengths.clamp(min=rope.original_positions).float() / rope.original_positions
        growth = (rope.factor * seen - (rope.factor - 1)) ** (dim / (dim - 2))
        exponents = _exponents(dim).to(lengths.device)
        return 1.0 / ((rope.rope_theta * growth)[:, None] ** exponents)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate ``[tokens x heads x head_dim]``; halves of a head form the pairs.

    The first half of ``sin`` is negative, as :meth:`RotaryEmbedding.forward` gives it.
    """
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)
