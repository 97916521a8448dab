"""The layers of a decoder, with q, k, v and gate, up fused. Texts are ragged rows."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from hotswap.engine.batch import Batch, Segment
from hotswap.engine.config import ModelConfig
from hotswap.engine.linear import Linear, empty_parameter
from hotswap.engine.rope import rotate

__all__ = ["Attention", "DecoderLayer", "Mlp", "RmsNorm"]


class RmsNorm(nn.Module):
    """Root mean square norm over the last dimension, in float32, scaled in the model's dtype."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = empty_parameter(size, dtype=dtype, device=device)
        self._eps = eps

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Any leading dimensions."""
        wide = inputs.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        return self.weight * (wide * scale).to(inputs.dtype)


class Attention(nn.Module):
    """Grouped-query attention of new tokens against each text's own keys and values."""

    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self._layer = layer
        self._heads, self._kv_heads = config.num_attention_heads, config.num_kv_heads
        self._head_dim = config.head_dim
        self._sizes = [
            count * config.head_dim for count in (self._heads, self._kv_heads, self._kv_heads)
        ]
        self.qkv_proj = Linear(
            config.hidden_size,
            sum(self._sizes),
            bias=config.qkv_bias,
            dtype=dtype,
            device=device,
        )
        self.o_proj = Linear(
            self._sizes[0], config.hidden_size, bias=config.o_bias, dtype=dtype, device=device
        )
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            eps = config.rms_norm_eps
            self.q_norm = RmsNorm(config.head_dim, eps, dtype=dtype, device=device)
            self.k_norm = RmsNorm(config.head_dim, eps, dtype=dtype, device=device)

    def forward(
        self, hidden: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], batch: Batch
    ) -> torch.Tensor:
        """``[tokens x hidden]`` to the same; stores the new keys and values."""
        fused = self.qkv_proj(hidden).split(self._sizes, dim=-1)
        queries, keys, values = (part.reshape(part.shape[0], -1, self._head_dim) for part in fused)
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = rotate(queries, *rotation), rotate(keys, *rotation)
        seen = torch.empty_like(queries)
        for segment in batch.segments:
            rows = slice(segment.start, segment.stop)
            segment.kv.store(self._layer, keys[rows].transpose(0, 1), values[rows].transpose(0, 1))
            seen[rows] = self._attend(queries[rows], segment)
        mixed: torch.Tensor = self.o_proj(seen.flatten(-2))
        return mixed

    def _attend(self, queries: torch.Tensor, segment: Segment) -> torch.Tensor:
        """``[new x heads x head_dim]`` to the same."""
        keys, values = segment.kv.layer(self._layer, segment.total)
        new = queries.shape[0]
        if new == 1:
            # The query heads of a group are rows of one small product: no copy of K and V.
            grouped = queries.view(1, self._kv_heads, -1, self._head_dim)
            seen = functional.scaled_dot_product_attention(grouped, keys[None], values[None])
            return seen.reshape(1, self._heads, self._head_dim)
        group = self._heads // self._kv_heads
        shape = (self._kv_heads, group, segment.total, self._head_dim)
        seen = functional.scaled_dot_product_attention(
            queries.transpose(0, 1).reshape(self._kv_heads, group, new, self._head_dim),
            keys[:, None].expand(shape),
            values[:, None].expand(shape),
            attn_mask=segment.mask,
            is_causal=segment.mask is None,
        )
        return seen.flatten(0, 1).transpose(0, 1)


class Mlp(nn.Module):
    """``down(silu(gate) * up)``."""

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        inner, bias = config.intermediate_size, config.mlp_bias
        self.gate_up_proj = Linear(
            config.hidden_size, 2 * inner, bias=bias, dtype=dtype, device=device
        )
        self.down_proj = Linear(inner, config.hidden_size, bias=bias, dtype=dtype, device=device)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[tokens x hidden]`` to the same."""
        gate, up = self.gate_up_proj(hidden).chunk(2, dim=-1)
        down: torch.Tensor = self.down_proj(functional.silu(gate) * up)
        return down


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer, dtype=dtype, device=device)
        self.mlp = Mlp(config, dtype=dtype, device=device)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RmsNorm(size, eps, dtype=dtype, device=device)
        self.post_attention_layernorm = RmsNorm(size, eps, dtype=dtype, device=device)

    def forward(
        self, hidden: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], batch: Batch
    ) -> torch.Tensor:
        """``[tokens x hidden]`` to the same."""
        attended: torch.Tensor = self.self_attn(self.input_layernorm(hidden), rotation, batch)
        hidden = hidden + attended
        transformed: torch.Tensor = self.mlp(self.post_attention_layernorm(hidden))
        return hidden + transformed
