"""The layers of a decoder, with q, k, v and gate, up fused. Texts are ragged rows."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from hotswap.engine.attention import TextAttention
from hotswap.engine.config import ModelConfig
from hotswap.engine.linear import Linear, empty_parameter
from hotswap.engine.rope import Rotation, rotate

__all__ = ["Attention", "DecoderLayer", "Mlp", "RmsNorm"]


class RmsNorm(nn.Module):
    """Root mean square norm over the last dimension, in float32, then scaled as it came in."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight: nn.Parameter = empty_parameter(size, dtype=dtype, device=device)
        self._eps = eps

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Any leading dimensions."""
        wide = inputs.float()
        scale = wide.square().mean(-1, keepdim=True).add_(self._eps).rsqrt_()
        return self.weight * (wide * scale).to(inputs.dtype)


class Attention(nn.Module):
    """The projections of grouped-query attention; ``TextAttention`` is between them."""

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self._heads, self._kv_heads = config.num_attention_heads, config.num_kv_heads
        self._head_dim = config.head_dim
        self.qkv_proj: Linear = Linear(
            config.hidden_size,
            (self._heads + 2 * self._kv_heads) * config.head_dim,
            bias=config.qkv_bias,
            dtype=dtype,
            device=device,
        )
        self.o_proj: Linear = Linear(
            self._heads * config.head_dim,
            config.hidden_size,
            bias=config.o_bias,
            dtype=dtype,
            device=device,
        )
        self.q_norm: RmsNorm | None = None
        self.k_norm: RmsNorm | None = None
        if config.qk_norm:
            eps = config.rms_norm_eps
            self.q_norm = RmsNorm(config.head_dim, eps, dtype=dtype, device=device)
            self.k_norm = RmsNorm(config.head_dim, eps, dtype=dtype, device=device)

    def heads(self, hidden: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries ``[tokens x heads x head_dim]`` and what ``TextAttention`` stores of them."""
        fused = self.qkv_proj(hidden).view(hidden.shape[0], -1, self._head_dim)
        turning, values = fused.tensor_split((self._heads + self._kv_heads,), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = turning.tensor_split((self._heads,), dim=1)
            turning = torch.cat((self.q_norm(queries), self.k_norm(keys)), dim=1)
        queries, keys = rotate(turning, *rotation).tensor_split((self._heads,), dim=1)
        return queries, torch.cat((keys, values), dim=1)


class Mlp(nn.Module):
    """``down(silu(gate) * up)``."""

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        inner, bias = config.intermediate_size, config.mlp_bias
        self.gate_up_proj: Linear = Linear(
            config.hidden_size, 2 * inner, bias=bias, dtype=dtype, device=device
        )
        self.down_proj: Linear = Linear(
            inner, config.hidden_size, bias=bias, dtype=dtype, device=device
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[tokens x hidden]`` to the same."""
        gate, up = self.gate_up_proj(hidden).chunk(2, dim=-1)
        down: torch.Tensor = self.down_proj(functional.silu(gate).mul_(up))
        return down


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.number = layer
        self.self_attn: Attention = Attention(config, dtype=dtype, device=device)
        self.mlp: Mlp = Mlp(config, dtype=dtype, device=device)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm: RmsNorm = RmsNorm(size, eps, dtype=dtype, device=device)
        self.post_attention_layernorm: RmsNorm = RmsNorm(size, eps, dtype=dtype, device=device)

    def forward(
        self, hidden: torch.Tensor, rotation: Rotation, attention: TextAttention
    ) -> torch.Tensor:
        """``[tokens x hidden]`` to the same; stores the new keys and values."""
        return self.after(hidden, attention.attend(self.number, *self.before(hidden, rotation)))

    def before(self, hidden: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention wants: see ``Attention.heads``."""
        return self.self_attn.heads(self.input_layernorm(hidden), rotation)

    def after(self, hidden: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """``[tokens x hidden]``, once attention has ``seen`` ``[tokens x heads x head_dim]``."""
        attended: torch.Tensor = self.self_attn.o_proj(seen.flatten(-2))
        hidden = hidden + attended
        transformed: torch.Tensor = self.mlp(self.post_attention_layernorm(hidden))
        return hidden + transformed
