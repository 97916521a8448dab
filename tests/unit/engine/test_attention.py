"""Attention of many texts at once: short ones together, long ones and prompts alone."""

from __future__ import annotations

import pytest
import torch

from hotswap.engine.attention import TextAttention
from hotswap.engine.batch import Work, make_batch
from hotswap.engine.kv import KvCache, KvShape

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 8
CPU = torch.device("cpu")


def shape(dtype: torch.dtype) -> KvShape:
    return KvShape(num_layers=2, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=dtype, device=CPU)


def filled(length: int, dtype: torch.dtype) -> KvCache:
    kv = KvCache(shape(dtype))
    kv.reserve(length)
    for layer in range(2):
        kv.store(
            layer,
            torch.randn(KV_HEADS, length, HEAD_DIM).to(dtype),
            torch.randn(KV_HEADS, length, HEAD_DIM).to(dtype),
        )
    kv.advance(length)
    return kv


def naive(queries: torch.Tensor, kv: KvCache, *, layer: int, total: int) -> torch.Tensor:
    """Head by head and row by row in float64."""
    keys, values = (part.double() for part in kv.layer(layer, total))
    new = queries.shape[0]
    seen = torch.empty(queries.shape, dtype=torch.float64)
    for row in range(new):
        for head in range(HEADS):
            group, end = head // (HEADS // KV_HEADS), total - new + row + 1
            scores = keys[group, :end] @ queries[row, head].double() * HEAD_DIM**-0.5
            seen[row, head] = scores.softmax(-1) @ values[group, :end]
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("past", "new"),
    [
        ([5], [1]),
        ([5, 40, 1, 9], [1, 1, 1, 1]),
        ([5, 0, 9], [1, 7, 1]),
        ([600, 5, 511, 512], [1, 1, 1, 1]),
        ([20, 0, 4, 3], [6, 3, 1, 1]),
        ([0, 4], [3, 1]),
    ],
)
def test_every_text_sees_its_own_keys_and_values(
    past: list[int], new: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    texts = [filled(length, dtype) for length in past]
    works = [
        Work(kv=kv, tokens=[1] * count, prompt_length=1)
        for kv, count in zip(texts, new, strict=True)
    ]
    batch = make_batch(works, CPU)
    attention = TextAttention(batch.segments, heads=HEADS, kv_heads=KV_HEADS)
    for layer in range(2):
        # Float32 queries of bfloat16 keys too: what a CPU without bfloat16 has.
        queries = torch.randn(sum(new), HEADS, HEAD_DIM)
        fresh = torch.randn(sum(new), 2 * KV_HEADS, HEAD_DIM)
        seen = attention.attend(layer, queries, fresh)
        assert seen.dtype is torch.float32
        for segment in batch.segments:
            rows = slice(segment.start, segment.stop)
            stored = segment.kv.rows(segment.kv.length, segment.total)[layer]
            parts = fresh[rows].view(-1, 2, KV_HEADS, HEAD_DIM).permute(1, 2, 0, 3)
            assert torch.equal(stored, parts.to(dtype))
            wanted = naive(queries[rows], segment.kv, layer=layer, total=segment.total)
            # A long text's query is rounded to bfloat16, once.
            tolerance = 1e-5 if dtype is torch.float32 else 2e-2
            torch.testing.assert_close(seen[rows].double(), wanted, atol=tolerance, rtol=tolerance)


def test_a_text_of_nan_spoils_no_other() -> None:
    texts = [filled(length, torch.float32) for length in (30, 4, 12)]
    texts[0].layer(0, 30)[0].fill_(torch.nan)
    texts[0].layer(0, 30)[1].fill_(torch.nan)
    batch = make_batch([Work(kv=kv, tokens=[1], prompt_length=1) for kv in texts], CPU)
    attention = TextAttention(batch.segments, heads=HEADS, kv_heads=KV_HEADS)
    for _pass in range(2):
        seen = attention.attend(
            0, torch.randn(3, HEADS, HEAD_DIM), torch.randn(3, 2 * KV_HEADS, HEAD_DIM)
        )
        assert seen[0].isnan().all()
        assert seen[1:].isfinite().all()
