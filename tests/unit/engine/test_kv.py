from __future__ import annotations

import torch

from hotswap.engine.kv import KvCache, KvShape

SHAPE = KvShape(
    num_layers=2, num_kv_heads=2, head_dim=3, dtype=torch.float32, device=torch.device("cpu")
)


def append(kv: KvCache, count: int) -> torch.Tensor:
    rows = torch.randn(2, count, 3)
    kv.reserve(kv.length + count)
    for layer in range(2):
        kv.store(layer, rows + layer, -rows)
    kv.advance(count)
    return rows


def test_growing_keeps_what_is_stored() -> None:
    kv = KvCache(SHAPE)
    parts = [append(kv, count) for count in (1, KvCache.BLOCK - 1, 1, 2 * KvCache.BLOCK)]
    whole = torch.cat(parts, dim=1)
    assert kv.length == 3 * KvCache.BLOCK + 1
    assert kv.capacity == 4 * KvCache.BLOCK
    for layer in range(2):
        keys, values = kv.layer(layer, kv.length)
        assert torch.equal(keys, whole + layer)
        assert torch.equal(values, -whole)


def test_copies_share_no_memory() -> None:
    kv = KvCache(SHAPE)
    rows = append(kv, 5)
    trimmed = kv.trimmed()
    assert (trimmed.length, trimmed.capacity) == (5, 5)
    assert trimmed.size_bytes == 2 * 2 * 2 * 5 * 3 * 4
    other = KvCache(SHAPE)
    other.copy_from(trimmed, 3)
    assert (other.length, other.capacity) == (3, KvCache.BLOCK)
    append(kv, 1)
    kv.layer(0, 5)[0].zero_()
    trimmed.layer(0, 5)[0].add_(1)
    assert torch.equal(other.layer(0, 3)[0], rows[:, :3])
    assert repr(other) == f"<KvCache 3 of {KvCache.BLOCK} tokens>"
