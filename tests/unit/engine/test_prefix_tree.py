"""The tree of known beginnings, against a list that is searched from end to end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotswap.engine import prefix_tree
from hotswap.engine.kv import KvCache, KvShape
from hotswap.engine.prefix_cache import PrefixCache
from hotswap.engine.prefix_tree import PrefixTree, common_length

SHAPE = KvShape(
    num_layers=1, num_kv_heads=1, head_dim=1, dtype=torch.float32, device=torch.device("cpu")
)
TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=8)


def kv_of(tokens: list[int]) -> KvCache:
    """KV whose every key is the token it stands for."""
    kv = KvCache(SHAPE)
    kv.reserve(len(tokens))
    rows = torch.tensor(tokens, dtype=torch.float32)[None, :, None]
    kv.store(0, rows, rows)
    kv.advance(len(tokens))
    return kv


@given(st.lists(st.tuples(st.sampled_from(["insert", "fill", "shrink"]), TEXT), max_size=40))
def test_it_finds_what_a_search_finds(steps: list[tuple[str, list[int]]]) -> None:
    cache, known = PrefixCache(max_entries=100, max_bytes=None), list[list[int]]()
    for step, text in steps:
        if step == "insert":
            cache.insert(kv_of(text), text, epoch=0)
            if not any(other[: len(text)] == text for other in known):
                known = [other for other in known if text[: len(other)] != other] + [text]
        elif step == "shrink":
            # Everything goes: which entries go first is a test of its own.
            cache.shrink_to(0)
            known = []
        kv = KvCache(SHAPE)
        length = cache.fill(kv, text, epoch=0)
        assert length == max((common_length(text, other) for other in known), default=0)
        assert kv.layer(0, length)[0][0, :, 0].tolist() == text[:length]
        assert cache.stats.entries == len(known)
        assert cache.size_tokens == sum(map(len, known))


@given(st.lists(TEXT, max_size=20))
def test_what_is_removed_is_gone_and_the_rest_stays(texts: list[list[int]]) -> None:
    tree, nodes = PrefixTree(), dict[tuple[int, ...], prefix_tree.Node]()
    for text in texts:
        if tree.longest(text)[0] < len(text):
            nodes[tuple(text)] = tree.add(text, kv_of(text))
    for key in list(nodes):
        tree.remove(nodes[key])
        del nodes[key]
        found, node = tree.longest(key)
        assert found == max((common_length(key, other) for other in nodes), default=0)
        assert (node is None) == (found == 0)
        assert node is None or node in nodes.values()
    assert repr(tree) == "<PrefixTree 0 beginnings>"


def test_a_look_costs_the_same_however_many_texts_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = list(range(512))
    cache = PrefixCache(max_entries=1000, max_bytes=None)
    for number in range(600):
        text = [*shared, 1000 + number, 7]
        cache.insert(kv_of(text), text, epoch=0)
    calls = list[int]()

    def counting(left: tuple[int, ...], right: tuple[int, ...]) -> int:
        calls.append(len(left))
        return common_length(left, right)

    monkeypatch.setattr(prefix_tree, "common_length", counting)
    kv = KvCache(SHAPE)
    assert cache.fill(kv, [*shared, 1599, 8], epoch=0) == 513
    assert len(calls) == 2
    assert sum(calls) <= 514
