"""Attention of one forward pass: every text's new tokens against its own keys and values.

Texts that bring one token each, and are short, are attended to together: on a CPU most
of the time of a small product is the calling of it. Their keys and values are gathered
for that, layer by layer, into one padded float32 buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from hotswap.engine.batch import Segment

__all__ = ["TextAttention"]

# As measured: beyond it gathering costs more than the calls that it saves.
_SHORT = 512


class TextAttention:
    """One forward pass over ``segments``; made for it and dropped after it."""

    def __init__(self, segments: Sequence[Segment], *, heads: int, kv_heads: int) -> None:
        self._heads, self._kv_heads = heads, kv_heads
        self._slots = [segment.kv.rows(segment.kv.length, segment.total) for segment in segments]
        together = [one for one in segments if one.stop - one.start == 1 and one.total <= _SHORT]
        is_worth_it = len(together) > 1 and together[0].kv.shape.device.type == "cpu"
        self._together = _Together(together, heads=heads) if is_worth_it else None
        self._segments = segments
        self._alone = [one for one in segments if not is_worth_it or one not in together]

    def attend(self, layer: int, queries: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
        """``[tokens x heads x head_dim]`` to the same, once the new keys and values are stored.

        ``fresh`` is ``[tokens x 2 * kv_heads x head_dim]``: keys, then values.
        """
        self._store(layer, fresh)
        if not self._alone and self._together is not None:
            return self._together.attend(layer, queries)
        seen = queries.new_empty(queries.shape)
        if self._together is not None:
            rows = self._together.rows
            seen[rows] = self._together.attend(layer, queries[rows])
        for segment in self._alone:
            seen[segment.start : segment.stop] = self._attend_alone(layer, segment, queries)
        return seen

    def _store(self, layer: int, fresh: torch.Tensor) -> None:
        # [2 x kv_heads x tokens x head_dim], as the caches have it.
        parts = fresh.view(len(fresh), 2, self._kv_heads, -1).permute(1, 2, 0, 3)
        sizes = [segment.stop - segment.start for segment in self._segments]
        torch._foreach_copy_(
            [slot[layer] for slot in self._slots], torch.split(parts, sizes, dim=2)
        )

    def _attend_alone(self, layer: int, segment: Segment, queries: torch.Tensor) -> torch.Tensor:
        new, head_dim = segment.stop - segment.start, queries.shape[-1]
        keys, values = segment.kv.layer(layer, segment.total)
        rows = queries[segment.start : segment.stop]
        if new == 1:
            # The query heads of a group are rows of one small product: no copy of K and V.
            grouped = rows.to(keys.dtype).reshape(1, self._kv_heads, -1, head_dim)
            seen = functional.scaled_dot_product_attention(grouped, keys[None], values[None])
            return seen.reshape(1, self._heads, head_dim)
        keys, values = keys.to(rows.dtype), values.to(rows.dtype)
        group = self._heads // self._kv_heads
        shape = (self._kv_heads, group, segment.total, head_dim)
        seen = functional.scaled_dot_product_attention(
            rows.transpose(0, 1).reshape(self._kv_heads, group, new, head_dim),
            keys[:, None].expand(shape),
            values[:, None].expand(shape),
            attn_mask=segment.mask,
            is_causal=segment.mask is None,
        )
        return seen.flatten(0, 1).transpose(0, 1)


class _Together:
    """Texts of one new token each, padded to the longest."""

    def __init__(self, segments: Sequence[Segment], *, heads: int) -> None:
        shape = segments[0].kv.shape
        self._kv_heads, self._head_dim = shape.num_kv_heads, shape.head_dim
        self._heads = heads
        totals = [segment.total for segment in segments]
        count, longest = len(segments), max(totals)
        self.rows = [segment.start for segment in segments]
        self._stored = [segment.kv.rows(0, segment.total) for segment in segments]
        # Zeros: what nobody writes is masked, but the mask does not hide a NaN.
        gathered = torch.zeros(
            2, count, self._kv_heads, longest, self._head_dim, device=shape.device
        )
        self._gathered = [gathered[:, at, :, :total] for at, total in enumerate(totals)]
        flat = gathered.view(2, count * self._kv_heads, longest, self._head_dim)
        self._keys, self._values = flat[0].transpose(1, 2), flat[1]
        self._mask = _padding(totals, self._kv_heads, shape.device)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """``[texts x heads x head_dim]`` to the same."""
        torch._foreach_copy_(self._gathered, [stored[layer] for stored in self._stored])
        grouped = queries.float().reshape(len(self.rows) * self._kv_heads, -1, self._head_dim)
        scores = torch.baddbmm(self._mask, grouped, self._keys, alpha=self._head_dim**-0.5)
        seen = torch.bmm(scores.softmax(-1), self._values)
        return seen.view(-1, self._heads, self._head_dim).to(queries.dtype)


def _padding(totals: Sequence[int], kv_heads: int, device: torch.device) -> torch.Tensor:
    """``[texts * kv_heads x 1 x longest]`` float32: zero, and minus infinity past a text's end."""
    longest = torch.arange(max(totals), device=device)
    is_past = longest >= torch.tensor(totals, device=device).repeat_interleave(kv_heads)[:, None]
    return torch.zeros(is_past.shape, device=device).masked_fill(is_past, -torch.inf)[:, None]
